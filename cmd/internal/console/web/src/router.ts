// Which page is shown is in the part of the address behind #, so that a page can be kept as a
// bookmark and the server needs to know of none.
import { useEffect, useState } from "preact/hooks";

export interface Place {
  page: string;
  id: string;
}

function parse(hash: string): Place {
  const [page = "", id = ""] = hash.replace(/^#\/?/, "").split("/");
  return { page: page || "overview", id: /^[0-9a-f]{6,64}$/.test(id) ? id : "" };
}

export function here(): Place {
  return parse(location.hash);
}

export function to(page: string, id?: string): string {
  return "#/" + page + (id ? "/" + id : "");
}

export function usePlace(): Place {
  const [place, set] = useState(here);
  useEffect(() => {
    const changed = () => set(here());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return place;
}
