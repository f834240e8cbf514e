import { Component, createElement, type ComponentChildren, type ComponentType, type FunctionComponent } from "preact";

/** memo draws a component again only when one of its properties is another. */
export function memo<P extends object>(of: FunctionComponent<P>): ComponentType<P> {
  return class Memo extends Component<P> {
    override shouldComponentUpdate(next: Readonly<P>): boolean {
      const a = this.props as Record<string, unknown>;
      const b = next as Record<string, unknown>;
      for (const k in b) if (a[k] !== b[k]) return true;
      return false;
    }
    override render(): ComponentChildren {
      return createElement(of as FunctionComponent, this.props);
    }
  } as unknown as ComponentType<P>;
}
