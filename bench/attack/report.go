// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"
)

func printRows(w io.Writer, rows []row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "attack\tfrom\trepeats\tpause ms\tmachine ms\tAPI ms\tattach ms\tpart\treceived\tlost\tcounted\tbad\twrong\tcontrol MiB\tengine MiB\tfds\tmaps\tverdict")
	for i := range rows {
		r := &rows[i]
		fmt.Fprintf(t, "%s\t%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%d\t%d\t%d\t%d\t%d\t%d→%d, at most %d\t%d→%d\t%d→%d, %d→%d\t%d→%d, %d→%d\t%s\n",
			r.Name, r.From, r.Repeats, r.PauseMS, r.MachineMS, r.APIMS, r.AttachMS, r.Part, r.Received, r.Lost, r.Counted, r.Bad, r.Wrong,
			r.Control[0].Bytes>>20, r.Control[1].Bytes>>20, r.PeakBytes>>20, r.Engine[0].Bytes>>20, r.Engine[1].Bytes>>20,
			r.Control[0].Descriptors, r.Control[1].Descriptors, r.Engine[0].Descriptors, r.Engine[1].Descriptors,
			r.Control[0].Mappings, r.Control[1].Mappings, r.Engine[0].Mappings, r.Engine[1].Mappings, r.verdict())
	}
	t.Flush()
}

func printMarkdown(w io.Writer, rows []row) {
	fmt.Fprintln(w, "| Attack | By | What it does | Repeats | Longest pause | Bare machine | API | Attach | Part | Lost | Bystanders may lose |")
	fmt.Fprintln(w, "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|")
	does := map[string]string{}
	for _, a := range attacks {
		does[a.name] = a.summary
	}
	for i := range rows {
		r := &rows[i]
		fmt.Fprintf(w, "| %s | %s | %s | %d | %.0f ms | %.0f ms | %.0f ms | %.0f ms | %.2f | %d | %s |\n", r.Name, r.From, does[r.Name], r.Repeats,
			r.PauseMS, r.MachineMS, r.APIMS, r.AttachMS, r.Part, r.Lost, cmp.Or(r.MayLose, "nothing"))
	}
}
