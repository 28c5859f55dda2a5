// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"weft/bench"
	"weft/e2e/lab"
)

// process is a program that the suite has started. The program writes to a log file, whose end is part
// of error messages.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   string
	done  chan struct{} // closed when the program has ended; err is set then
	err   error
	quit  syscall.Signal // signal that asks the program to end, with its children; 0: SIGTERM
}

func start(dir, name, program string, args ...string) *process {
	log := filepath.Join(dir, name+".log")
	out := lab.Must(os.Create(log))
	defer out.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in := lab.Must(cmd.StdinPipe())
	if err := bench.StartWithParent(cmd); err != nil {
		lab.Check(fmt.Errorf("start %s: %w", program, err))
	}
	p := &process{cmd: cmd, stdin: in, log: log, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p
}

func (p *process) say(line string) { fmt.Fprintln(p.stdin, line) }

func (p *process) wait(limit time.Duration) {
	select {
	case <-p.done:
	case <-time.After(limit):
	}
}

func (p *process) stop() {
	if p == nil {
		return
	}
	p.cmd.Process.Signal(cmp.Or(p.quit, syscall.SIGTERM))
	p.wait(5 * time.Second)
	p.cmd.Process.Kill()
	<-p.done
}

func (p *process) alive() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %v: %s", filepath.Base(p.cmd.Path), p.err, p.tail())
	default:
		return nil
	}
}

func (p *process) output() string {
	b, _ := os.ReadFile(p.log)
	return string(b)
}

func (p *process) tail() string {
	lines := strings.Split(strings.TrimSpace(p.output()), "\n")
	return brief(strings.Join(lines[max(0, len(lines)-4):], " / "))
}

// commandLimit is the time limit of a command. After the command has ended, its children may keep its
// output open for pipesLimit.
const (
	commandLimit = time.Minute
	pipesLimit   = time.Second
)

func command(env []string, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), commandLimit, fmt.Errorf("not done within %s", commandLimit))
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = pipesLimit
	cmd.Env = append(os.Environ(), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), cmp.Or(context.Cause(ctx), err), brief(errOut.String()+out.String()))
	}
	return out.String(), nil
}

func brief(text string) string {
	const most = 300
	line := []rune(strings.Join(strings.Fields(text), " "))
	if len(line) > most {
		return "…" + string(line[len(line)-most:])
	}
	return string(line)
}

// netnsCommand returns a command line that runs words in the namespace netns. If netns is empty, it
// returns words.
func netnsCommand(netns string, words ...string) []string {
	if netns == "" {
		return words
	}
	return append([]string{"ip", "netns", "exec", netns}, words...)
}

// runCommands runs the commands one after the other until one fails.
func runCommands(env []string, commands [][]string) {
	for _, c := range commands {
		lab.Must(command(env, c[0], c[1:]...))
	}
}

// eventually calls f until f does not fail. It fails itself if this takes longer than the limit.
func eventually(limit time.Duration, f func()) {
	for deadline := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		err := lab.Attempt(f)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			lab.Check(fmt.Errorf("not within %s: %w", limit, err))
		}
	}
}
