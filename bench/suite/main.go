// Command suite runs Weft beside its peers on the machine at hand and prints a
// table: the same guests, the same frames, one switch core each, in alternating
// runs. `make bench` calls it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netns"

	"weft/bench"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == driveVerb {
		if err := driveUplink(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	var (
		only    = flag.String("scenario", "", "run only scenarios whose title contains this")
		peers   = flag.String("peers", "weft,ovs-dpdk,testpmd", "switches to compare, in this order")
		sizes   = flag.String("sizes", "64,1500", "frame sizes in bytes, checksum not counted")
		runs    = flag.Int("runs", 5, "alternating runs of each switch")
		seconds = flag.Int("seconds", 3, "length of each measurement")
		bursts  = flag.Int("bursts", 8, "bursts of 32 frames circulating between the guests")
		bin     = flag.String("bin", "bin", "folder of weftd and weft")
		out     = flag.String("out", "", "write the results as JSON to this file")
		keep    = flag.Bool("keep", false, "keep the scratch folder with all logs")
	)
	flag.Parse()
	if err := runSuite(*only, *peers, *sizes, *bin, *out, *runs, *seconds, *bursts, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func runSuite(only, peerList, sizeList, bin, out string, runs, seconds, bursts int, keep bool) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("needs root: namespaces, huge pages and XDP")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	sizes, err := parseSizes(sizeList)
	if err != nil {
		return err
	}
	peers, err := parsePeers(peerList, bin)
	if err != nil {
		return err
	}
	pages, err := hugePages(1536)
	if err != nil {
		return err
	}
	defer pages()
	report := newReport(runs, seconds, bursts)
	for id, sc := range scenarios(sizes) {
		if !strings.Contains(sc.title, only) {
			continue
		}
		if err := measure(ctx, id, sc, peers, report, keep); err != nil {
			return err
		}
	}
	report.print(os.Stdout)
	if out != "" {
		return report.write(out)
	}
	return nil
}

// measure alternates A B C A B C over one scenario.
func measure(ctx context.Context, id int, sc *scenario, peers []peer, report *report, keep bool) error {
	row := report.row(sc.title, sc.size)
	for i := range report.Runs {
		for _, p := range peers {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			regime, err := bench.Regime(switchCore, guestCore)
			if err != nil {
				return err
			}
			rate, err := once(fmt.Sprintf("%d-%d", os.Getpid()%10000, id), sc, p, report, keep)
			row.add(p.name(), rate, regime, err)
			fmt.Fprintf(os.Stderr, "%-24s run %d/%d  %-9s %s  (%s)\n", sc.title, i+1, report.Runs, p.name(), outcome(rate, err), bench.RegimeName(regime))
		}
	}
	return nil
}

func once(id string, sc *scenario, p peer, report *report, keep bool) (float64, error) {
	dir, err := os.MkdirTemp("", "weftbench")
	if err != nil {
		return 0, err
	}
	if keep {
		fmt.Fprintln(os.Stderr, "logs:", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	defer sc.clear()
	if err := sc.lay(id); err != nil {
		return 0, err
	}
	defer p.down()
	if sc.way != "" {
		return measureUplink(dir, sc, p, report.Seconds)
	}
	if err := p.up(dir, sc); err != nil {
		return 0, err
	}
	return guests(dir, sc, report.Bursts, report.Seconds)
}

func outcome(rate float64, err error) string {
	if err != nil {
		return "failed: " + err.Error()
	}
	return fmt.Sprintf("%6.2f Mpps", rate/1e6)
}

func parseSizes(list string) ([]int, error) {
	var sizes []int
	for _, word := range strings.Split(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 60 || n > 1514 {
			return nil, fmt.Errorf("-sizes: %q is not a frame size between 60 and 1514", word)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

func parsePeers(list, bin string) ([]peer, error) {
	known := map[string]peer{"weft": &weft{bin: bin}, "ovs-dpdk": &ovs{}, "testpmd": &testpmdSwitch{}}
	var peers []peer
	for _, word := range strings.Split(list, ",") {
		p, ok := known[word]
		if !ok {
			return nil, fmt.Errorf("-peers: %q is none of weft, ovs-dpdk, testpmd", word)
		}
		peers = append(peers, p)
	}
	return peers, nil
}

// hugePages reserves what DPDK needs and returns what gives it back.
func hugePages(pages int) (restore func(), err error) {
	const file = "/proc/sys/vm/nr_hugepages"
	before, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	mounted := false
	restore = func() {
		os.WriteFile(file, before, 0o644)
		if mounted {
			syscall.Unmount("/dev/hugepages", 0)
		}
	}
	if have, _ := strconv.Atoi(strings.TrimSpace(string(before))); have < pages {
		if err := os.WriteFile(file, []byte(strconv.Itoa(pages)), 0o644); err != nil {
			return nil, fmt.Errorf("reserve %d huge pages: %w", pages, err)
		}
	}
	if mounts, _ := os.ReadFile("/proc/mounts"); !strings.Contains(string(mounts), " /dev/hugepages ") {
		if err := os.MkdirAll("/dev/hugepages", 0o755); err != nil {
			return nil, err
		}
		if err := syscall.Mount("none", "/dev/hugepages", "hugetlbfs", 0, ""); err != nil {
			restore()
			return nil, fmt.Errorf("mount hugetlbfs: %w", err)
		}
		mounted = true
	}
	return restore, nil
}

// inNetns runs f on a thread that is in the namespace for as long.
func inNetns(ns netns.NsHandle, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if err := netns.Set(ns); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}
