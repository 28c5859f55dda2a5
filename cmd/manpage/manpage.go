// SPDX-License-Identifier: Apache-2.0

// Package manpage writes the manual pages of weft, weftd and weft-central. It takes
// their text from the help texts of the commands, and uses the macros of man(7).
package manpage

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/internal/buildinfo"
)

// Page is a manual page. Text has the form of a help text: paragraphs between empty
// lines. Lines that begin with two blanks are printed as they are.
type Page struct {
	Name     string // as in weft-flows
	Section  int
	Summary  string         // one line
	Root     *cobra.Command // options and verbs to list; nil: none
	Text     string         // description
	Chapters []Chapter      // after the verbs
}

// Chapter is a section of a page with a title of its own.
type Chapter struct {
	Title string // capital letters
	Text  string
}

// Command returns a hidden command that "make install" runs. It writes the manual pages below a
// directory.
func Command(pages func() []Page) *cobra.Command {
	return &cobra.Command{
		Use: "man DIRECTORY", Short: "write the manual pages below a directory", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			for _, p := range pages() {
				if err := p.save(args[0]); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// save writes the page below dir, as man8/weft.8 for example.
func (p *Page) save(dir string) error {
	dir = filepath.Join(dir, fmt.Sprintf("man%d", p.Section))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var text strings.Builder
	p.Write(&text)
	return os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d", p.Name, p.Section)), []byte(text.String()), 0o644)
}

// Write writes the page's source to out. The page has no date, so that equal builds
// write equal pages.
func (p *Page) Write(out io.Writer) {
	fmt.Fprintf(out, ".TH %s %d \"\" \"weft %s\" \"Weft\"\n", strings.ToUpper(p.Name), p.Section, buildinfo.Own().Version)
	fmt.Fprintln(out, ".nh\n.ad l") // groff may not hyphenate or stretch options and flows
	fmt.Fprintf(out, ".SH NAME\n%s \\- %s\n", escape(p.Name), escape(p.Summary))
	if p.Root != nil {
		p.synopsis(out)
	}
	heading(out, "DESCRIPTION", p.Text)
	if p.Root != nil {
		fmt.Fprintln(out, ".SH OPTIONS")
		writeFlags(out, p.Root.PersistentFlags())
		writeFlags(out, p.Root.LocalNonPersistentFlags())
		if len(verbsOf(p.Root)) > 0 {
			fmt.Fprintln(out, ".SH VERBS")
			writeVerbs(out, p.Root)
		}
	}
	for _, c := range p.Chapters {
		heading(out, c.Title, c.Text)
	}
}

func (p *Page) synopsis(out io.Writer) {
	fmt.Fprintf(out, ".SH SYNOPSIS\n.B %s\n[OPTION...]", escape(p.Root.Name()))
	if len(verbsOf(p.Root)) > 0 {
		fmt.Fprint(out, " VERB [ARGUMENT...]")
	}
	fmt.Fprintln(out)
}

func heading(out io.Writer, title, text string) {
	if text != "" {
		fmt.Fprintf(out, ".SH %s\n", title)
		writeText(out, text)
	}
}

// writeVerbs writes a section of the manual page for each subcommand of cmd.
func writeVerbs(out io.Writer, cmd *cobra.Command) {
	for _, verb := range verbsOf(cmd) {
		writeVerb(out, verb)
		writeVerbs(out, verb)
	}
}

// verbsOf returns the subcommands of cmd that its help lists, without help topics.
func verbsOf(cmd *cobra.Command) []*cobra.Command {
	verbs := slices.DeleteFunc(slices.Clone(cmd.Commands()), func(v *cobra.Command) bool { return !v.IsAvailableCommand() })
	slices.SortFunc(verbs, func(a, b *cobra.Command) int { return cmp.Compare(a.Name(), b.Name()) })
	return verbs
}

// SameAs is the key of an annotation of a cobra command. Its value is the name of another command that
// does the same. The manual page then has a line that says so, instead of the command's help.
const SameAs = "same as"

func writeVerb(out io.Writer, verb *cobra.Command) {
	root := verb.Root().Name() + " "
	use := strings.TrimPrefix(strings.TrimSuffix(verb.UseLine(), " [flags]"), root)
	fmt.Fprintf(out, ".SS %s\n", quote(use))
	if other, ok := verb.Annotations[SameAs]; ok {
		writeText(out, "As "+other+".")
		return
	}
	short := strings.ToUpper(verb.Short[:1]) + verb.Short[1:] + "."
	writeText(out, short)
	writeText(out, verb.Long)
	writeFlags(out, verb.LocalNonPersistentFlags())
	if verb.Example != "" {
		writeText(out, "For example:\n\n"+verb.Example)
	}
}

func writeFlags(out io.Writer, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if kind != "" {
			name += " " + kind
		}
		switch f.DefValue {
		case "", "0", "false", "0s", "[]":
		default:
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(out, ".TP\n.B %s\n%s\n", escape(name), escape(usage))
	})
}

func writeText(out io.Writer, text string) {
	literal := false
	newParagraph := true
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n ")
		indented := strings.HasPrefix(line, "  ")
		switch {
		case line == "":
			newParagraph = true
			if literal {
				fmt.Fprintln(out, ".EE\n.RE")
				literal = false
			}
			continue
		case indented && !literal:
			fmt.Fprintln(out, ".PP\n.RS 2\n.EX")
			literal = true
		case !indented && literal:
			fmt.Fprintln(out, ".EE\n.RE\n.PP")
			literal = false
		case newParagraph && !literal:
			fmt.Fprintln(out, ".PP")
		}
		newParagraph = false
		fmt.Fprintln(out, escape(strings.TrimPrefix(line, "  ")))
	}
	if literal {
		fmt.Fprintln(out, ".EE\n.RE")
	}
}

// escape makes text safe in a line of groff. Backslashes and hyphens are printed as
// they are. A point or an apostrophe at the beginning does not start a macro.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// quote makes text one argument of a macro.
func quote(text string) string { return `"` + strings.ReplaceAll(escape(text), `"`, `\(dq`) + `"` }
