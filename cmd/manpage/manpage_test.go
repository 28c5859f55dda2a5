// SPDX-License-Identifier: Apache-2.0

package manpage

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func testPage() Page {
	root := &cobra.Command{Use: "prog", Short: "do it", RunE: func(*cobra.Command, []string) error { return nil }}
	root.PersistentFlags().StringP("file", "f", ".x", "where `FILE` is")
	root.PersistentFlags().Bool("hidden", false, "never seen")
	_ = root.PersistentFlags().MarkHidden("hidden")
	verb := &cobra.Command{Use: `say "WORD" [-]`, Short: "say a word", Run: func(*cobra.Command, []string) {},
		Long: ".starts with a point\nand goes on.\n\n  literal \\n\n  'more'\nAfter it.\n\nA new paragraph."}
	verb.Flags().Int("count", 3, "how often")
	topic := &cobra.Command{Use: "topic", Long: "no verb"}
	nested := &cobra.Command{Use: "group", Short: "verbs", Run: func(*cobra.Command, []string) {}, Args: cobra.NoArgs}
	nested.AddCommand(&cobra.Command{Use: "inner", Short: "inside", Run: func(*cobra.Command, []string) {}})
	root.AddCommand(verb, topic, nested)
	return Page{Name: "prog", Section: 8, Summary: "it - and more", Root: root, Text: "Does it.", Chapters: []Chapter{{"FILES", "  /etc/x"}}}
}

// A page has options, verbs and sections. No line begins so that groff takes it for a
// macro.
func TestPage(t *testing.T) {
	p := testPage()
	var text strings.Builder
	p.Write(&text)
	for _, want := range []string{
		".TH PROG 8 ", ".SH NAME\nprog \\- it \\- and more\n", ".B prog\n[OPTION...] VERB [ARGUMENT...]\n", ".SH DESCRIPTION\n.PP\nDoes it.\n",
		".B \\-f, \\-\\-file FILE\nwhere FILE is (default .x)\n", `.SS "say \(dqWORD\(dq [\-]"`, ".PP\nSay a word.\n",
		".PP\n\\&.starts with a point\nand goes on.\n.PP\n.RS 2\n.EX\nliteral \\en\n\\&'more'\n.EE\n.RE\n.PP\nAfter it.\n.PP\nA new paragraph.\n",
		".B \\-\\-count int\nhow often (default 3)\n", ".SS \"group\"\n.PP\nVerbs.\n.SS \"group inner\"\n", ".SH FILES\n.PP\n.RS 2\n.EX\n/etc/x\n.EE\n.RE\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	for _, absent := range []string{"never seen", "no verb", "--help"} {
		if strings.Contains(text.String(), absent) {
			t.Errorf("%q in\n%s", absent, text.String())
		}
	}
}

// man prints a page without a warning.
func TestMan(t *testing.T) {
	dir := t.TempDir()
	cmd := Command(func() []Page { return []Page{testPage()} })
	cmd.SetArgs([]string{dir})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	man := exec.Command("man", "--warnings", "-E", "UTF-8", "-l", filepath.Join(dir, "man8/prog.8"))
	man.Env = append(os.Environ(), "MANWIDTH=80", "MANROFFSEQ=", "LC_ALL=C.UTF-8")
	var warnings strings.Builder
	man.Stderr = &warnings
	out, err := man.Output()
	if err != nil || warnings.Len() > 0 || !strings.Contains(string(out), `literal \n`) {
		t.Errorf("%v: %s\n%s", err, warnings.String(), out)
	}
}
