// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/e2e/lab"
)

// startDemo starts the demonstration called name in a directory below e2e. It returns
// the command and the name of its output file.
func startDemo(t *testing.T, name string, args ...string) (cmd *exec.Cmd, output string) {
	t.Helper()
	l := newLab(t)
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "demo")
	build := exec.Command("go", "build", "-o", binary, "./e2e/"+name)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	output = filepath.Join(t.TempDir(), "output")
	f, err := os.Create(output)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd = exec.Command(binary, append([]string{"-bin", l.Programs()}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, f, f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, output
}

// noneLeft fails if the demonstration with the process id pid has left namespaces or
// files behind.
func noneLeft(t *testing.T, pid int) {
	t.Helper()
	prefix := fmt.Sprintf("weft%d-", pid)
	for _, dir := range []string{"/run/netns", os.TempDir()} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), prefix) {
				t.Errorf("left behind: %s", filepath.Join(dir, e.Name()))
			}
		}
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	cmd, output := startDemo(t, "demo", "-seconds", "1")
	err := cmd.Wait()
	out, _ := os.ReadFile(output)
	if err != nil {
		t.Fatalf("demo: %v\n%s", err, out)
	}
	for _, want := range []string{"vhost-user > weft > VXLAN 100 > AF_XDP", "iperf3 TCP vm -> guest-b", "iperf3 UDP guest-b -> vm"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the demo does not say %q", want)
		}
	}
	t.Logf("%s", out)
	noneLeft(t, cmd.Process.Pid)
}

func TestDemoCentral(t *testing.T) {
	t.Parallel()
	cmd, output := startDemo(t, "democentral")
	err := cmd.Wait()
	out, _ := os.ReadFile(output)
	if err != nil {
		t.Fatalf("demo-central: %v\n%s", err, out)
	}
	for _, want := range []string{"hosts have applied", "SIGKILL", "first frame", "all centrals off"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the demo does not say %q", want)
		}
	}
	t.Logf("%s", out)
	noneLeft(t, cmd.Process.Pid)
}

// A demonstration that Ctrl-C interrupts leaves no namespaces or files.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]string{"demo": "booting the virtual machine", "democentral": "pings between all"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			interruptDemo(t, name, step)
		})
	}
}

// interruptDemo interrupts a demonstration once the text step appears in its output.
func interruptDemo(t *testing.T, name, step string) {
	cmd, output := startDemo(t, name)
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		out, _ := os.ReadFile(output)
		if strings.Contains(string(out), step) || strings.Contains(string(out), ": not done") {
			break
		}
	}
	time.Sleep(500 * time.Millisecond)
	cmd.Process.Signal(syscall.SIGINT)
	err := cmd.Wait()
	out, _ := os.ReadFile(output)
	if cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("exit: %v, want code 130\n%s", err, out)
	}
	noneLeft(t, cmd.Process.Pid)
}
