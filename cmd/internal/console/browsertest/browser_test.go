// Package browsertest opens the console in a real browser, on real daemons, and does there what
// a person does. Without a Chromium on the machine its tests are skipped.
package browsertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	cdpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// patience bounds every wait of a test.
const patience = time.Minute

func TestMain(m *testing.M) {
	code := m.Run()
	browser.stop()
	if programs.dir != "" {
		os.RemoveAll(programs.dir) //nolint:errcheck // it is in the temporary directory
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// browser is the one Chromium of all tests.
var browser chromium

type chromium struct {
	once    sync.Once
	profile string
	ctx     context.Context
	stop    func()
	err     error
}

func init() { browser.stop = func() {} }

// findChromium is the program, and why there is none.
func findChromium() (string, error) {
	names := []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}
	if named := os.Getenv("CHROMIUM"); named != "" {
		names = []string{named}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no Chromium is on this machine (none of %s); install Debian's package chromium, or name the program in CHROMIUM", strings.Join(names, ", "))
}

// started gives the browser, or skips the test where there is none.
func started(t *testing.T) context.Context {
	if testing.Short() {
		t.Skip("runs a browser and real daemons")
	}
	path, err := findChromium()
	if err != nil {
		t.Skip(err)
	}
	browser.once.Do(func() { browser.start(path) })
	require.NoError(t, browser.err)
	return browser.ctx
}

func (c *chromium) start(path string) {
	if c.profile, c.err = os.MkdirTemp("", "console-browser"); c.err != nil {
		return
	}
	ctx, endAll := chromedp.NewExecAllocator(context.Background(), chromedp.ExecPath(path), chromedp.UserDataDir(c.profile),
		chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-backgrounding-occluded-windows", true), chromedp.Flag("disable-renderer-backgrounding", true), chromedp.Flag("disable-dev-shm-usage", true))
	ctx, end := chromedp.NewContext(ctx)
	c.err = chromedp.Do(ctx)
	c.ctx = ctx
	c.stop = func() {
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		chromedp.Cancel(bounded) //nolint:errcheck // it is ended below, whatever this says
		cancel()
		end()
		endAll()
		os.RemoveAll(c.profile) //nolint:errcheck // it is in the temporary directory
	}
}

// A person is somebody at a browser: cookies of their own, and tabs.
type person struct {
	t   *testing.T
	ctx context.Context
}

func newPerson(t *testing.T) *person {
	ctx, cancel := chromedp.NewContext(started(t), chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx))
	return &person{t, ctx}
}

// A tab is one page. What the browser says against it - violations of its policy, errors on
// its console, exceptions - ends the test, unless expected.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	said     []string
	expected []string
}

// watch tells of each violation of the policy on the page's console, where all else is told.
const watch = `addEventListener("securitypolicyviolation", (e) => console.error("VIOLATION " + e.violatedDirective + " " + e.blockedURI + " " + e.sample));`

// A look is how wide the screen is and in which colours.
type look struct {
	name          string
	width, height int64
	dark          bool
}

var (
	desktop = look{"desktop light", 1360, 850, false}
	night   = look{"desktop dark", 1360, 850, true}
	phone   = look{"phone light", 390, 844, false}
	bedside = look{"phone dark", 390, 844, true}
)

func (p *person) open(url string) *tab {
	ctx, cancel := chromedp.NewContext(p.ctx)
	p.t.Cleanup(cancel)
	b := &tab{t: p.t, ctx: ctx}
	require.NoError(p.t, chromedp.Do(ctx))
	require.NoError(p.t, chromedp.Listen(ctx, b.hear))
	_, err := chromedp.Call(ctx, cdplog.Enable, struct{}{})
	require.NoError(p.t, err)
	_, err = chromedp.Call(ctx, cdpage.AddScriptToEvaluateOnNewDocument, cdpage.AddScriptToEvaluateOnNewDocumentParams{Source: watch})
	require.NoError(p.t, err)
	_, err = chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	require.NoError(p.t, err)
	b.as(desktop)
	b.visit(url)
	p.t.Cleanup(func() {
		if p.t.Failed() {
			b.photograph("failed")
		}
		b.quiet()
	})
	return b
}

// hear notes what the browser says against the page.
func (b *tab) hear(ev any) {
	said := ""
	switch e := ev.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			for _, a := range e.Args {
				said += string(a.Value) + a.Description + " "
			}
		}
	case *runtime.EventExceptionThrown:
		said = "exception: " + e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			said += " " + e.ExceptionDetails.Exception.Description
		}
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.EntryLevelError || e.Entry.Level == cdplog.EntryLevelWarning {
			said = e.Entry.Text + " " + e.Entry.URL
		}
	}
	if said != "" {
		b.mu.Lock()
		b.said = append(b.said, said)
		b.mu.Unlock()
	}
}

// expect lets the browser say what contains text, as when a server is stopped on purpose.
func (b *tab) expect(text ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = append(b.expected, text...)
}

// quiet holds that nothing was said against the page.
func (b *tab) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
next:
	for _, s := range b.said {
		for _, e := range b.expected {
			if strings.Contains(s, e) {
				continue next
			}
		}
		b.t.Errorf("the browser says: %s", s)
	}
}

// as gives the tab a look.
func (b *tab) as(l look) {
	b.t.Helper()
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	_, err := chromedp.Call(b.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: l.width, Height: l.height, DeviceScaleFactor: 1, Mobile: l.width < 700})
	require.NoError(b.t, err)
	_, err = chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	require.NoError(b.t, err)
}

func (b *tab) visit(url string) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, chromedp.Navigate(url)))
}

// page goes to a page of the console, as a click on a link of it does.
func (b *tab) page(hash string) {
	b.t.Helper()
	b.run(fmt.Sprintf("location.hash = %q", hash))
}

// eval is the value of an expression.
func eval[T any](b *tab, js string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](js, chromedp.EvalAwaitPromise))
	require.NoError(b.t, err, js)
	return v
}

func (b *tab) run(js string) {
	b.t.Helper()
	_, err := chromedp.Run(b.ctx, chromedp.Evaluate[chromedp.Void](js))
	require.NoError(b.t, err, js)
}

// until waits for an expression to become true.
func (b *tab) until(what, js string) {
	b.t.Helper()
	ok := false
	defer func() {
		if !ok {
			b.t.Logf("the page says:\n%s", b.text("body"))
		}
	}()
	eventually(b.t, what, func() bool {
		v, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+js+")"))
		if err != nil && !errors.As(err, new(*chromedp.ExceptionError)) {
			require.NoError(b.t, err, js)
		}
		return v
	})
	ok = true
}

// shows waits until the part of the page that a selector names says something.
func (b *tab) shows(selector, text string) {
	b.t.Helper()
	b.until(selector+" says "+text, fmt.Sprintf(`[...document.querySelectorAll(%q)].some((e) => e.innerText.replace(/[\s\u2009]+/g, " ").includes(%q))`, selector, text))
}

// text is what a person reads there.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return eval[string](b, fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector))
}

// click clicks with the mouse, where the first element that a selector names is and nothing
// lies over it.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.until(selector+" can be clicked", fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		if (!e || e.disabled) return false;
		e.scrollIntoView({block: "center"});
		const r = e.getBoundingClientRect();
		window.clickAt = [r.left + r.width / 2, r.top + r.height / 2];
		return r.width > 0 && e.contains(document.elementFromPoint(...window.clickAt));
	})()`, selector))
	at := eval[[]float64](b, "window.clickAt")
	require.NoError(b.t, chromedp.Do(b.ctx, chromedp.MouseClickXY(at[0], at[1])), selector)
}

// keys presses keys, one after the other.
func (b *tab) keys(keys string) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, chromedp.KeyEvent(keys)))
}

// photograph keeps a picture of the page where SCREENSHOTS says.
func (b *tab) photograph(name string) {
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	p, err := chromedp.Call(b.ctx, cdpage.CaptureScreenshot, cdpage.CaptureScreenshotParams{})
	if err != nil {
		b.t.Logf("no picture: %v", err)
		return
	}
	file := dir + "/" + strings.NewReplacer("/", "-", " ", "-").Replace(b.t.Name()+"-"+name) + ".png"
	require.NoError(b.t, os.WriteFile(file, p.Data, 0o644))
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, patience, 10*time.Millisecond, what)
}
