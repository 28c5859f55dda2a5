// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"weft/cmd/manpage"
)

const centralFiles = `  /var/lib/weft-central  settings, certificates and store of a central (--data)
  /etc/weft/central      certificate of a host or an operator: ca.pem, cert.pem, key.pem`

// manPages returns the manual page weft-central(8).
func manPages(root *cobra.Command) []manpage.Page {
	return []manpage.Page{{
		Name: "weft-central", Section: 8, Summary: "declaration of a fleet of weft switches", Root: root, Text: root.Long,
		Chapters: []manpage.Chapter{{Title: "FILES", Text: centralFiles}, {Title: "SEE ALSO", Text: "weft(8), weftd(8)"}},
	}}
}
