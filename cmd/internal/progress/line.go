package progress

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
)

// rateAfter is how long a step must have gone on before it has a speed.
const rateAfter = time.Second

// barWidths are the columns that the bar itself may have: few sizes, so that it does not change with
// every digit beside it.
var barWidths = []int{40, 20, 10}

// line is how far the step has come, in at most columns: what is done, and with a total a bar, and how
// long the rest takes at this speed.
func (s *step) line(passed time.Duration, columns int) string {
	done, total := max(s.done.Load(), 0), s.total.Load()
	if total > 0 {
		done = min(done, total) // an estimate may have been too low
	}
	parts := []string{s.amount(done, total)}
	if passed >= rateAfter && done > 0 {
		speed := float64(done) / passed.Seconds()
		parts = append(parts, s.speed(speed))
		if total > 0 {
			parts = append(parts, lasting(time.Duration(float64(total-done)/speed*float64(time.Second)))+" left")
		}
	}
	if total <= 0 {
		parts = append(parts, lasting(passed))
		if done == 0 {
			parts = parts[1:] // nobody counts
		}
		return ansi.Truncate(s.what+"  "+strings.Join(parts, "  "), max(columns, 0), "")
	}
	head, tail := s.what+"  ", "  "+strings.Join(parts, "  ")
	share := float64(done) / float64(total)
	percent := fmt.Sprintf("%3d%%", int(share*100))
	room := columns - ansi.StringWidth(head) - ansi.StringWidth(tail) - len(percent) - len("[] ")
	fits := slices.IndexFunc(barWidths, func(n int) bool { return n <= room })
	if fits < 0 {
		return ansi.Truncate(head+percent+tail, max(columns, 0), "")
	}
	room = barWidths[fits]
	full := int(share * float64(room))
	return head + "[" + strings.Repeat("#", full) + strings.Repeat("-", room-full) + "] " + percent + tail
}

func (s *step) amount(done, total int64) string {
	if s.unit == "" {
		if total > 0 {
			return size(float64(done)) + " of " + size(float64(total))
		}
		return size(float64(done))
	}
	if total > 0 {
		return grouped(done) + " of " + grouped(total) + " " + s.unit
	}
	return grouped(done) + " " + s.unit
}

func (s *step) speed(a float64) string {
	if s.unit == "" {
		return size(a) + "/s"
	}
	return grouped(int64(a)) + "/s"
}

// size is a number of bytes for people.
func size(n float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for len(units) > 1 && n >= 1024 {
		n, units = n/1024, units[1:]
	}
	if units[0] == "B" || n >= 100 {
		return fmt.Sprintf("%.0f %s", n, units[0])
	}
	return fmt.Sprintf("%.1f %s", n, units[0])
}

// grouped is a number with its thousands apart.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// lasting is a duration for people, in whole seconds.
func lasting(d time.Duration) string {
	const most = 100 * time.Hour
	if d > most || d < 0 {
		return "long"
	}
	secs := int64((d + time.Second/2) / time.Second)
	switch {
	case secs < 60:
		return fmt.Sprintf("%ds", secs)
	case secs < 3600:
		return fmt.Sprintf("%dm%02ds", secs/60, secs%60)
	}
	return fmt.Sprintf("%dh%02dm", secs/3600, secs%3600/60)
}
