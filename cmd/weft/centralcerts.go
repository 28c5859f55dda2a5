// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"weft/central/client"
	"weft/central/pki"
	"weft/central/wire"
	"weft/cmd/exit"
)

const inviteHelp = `Prints a token, which weft central enrol turns into a certificate, once. The name of a host
must be the name under which it is declared. Roles:
  host     a weftd
  central  a further weft-central (weft-central join)
  admin    a person who may do everything
  reader   a person who may look`

func (c *command) inviteVerb() *cobra.Command {
	var role, name string
	var valid time.Duration
	verb := &cobra.Command{
		Use: "invite --role ROLE --name NAME", Short: "print a one-time token for a certificate", Long: inviteHelp, Args: words(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch _, err := pki.ParseRole(role); {
			case err != nil:
				return exit.Usagef("--role: %v", err)
			case name == "":
				return exit.Usagef("--name is missing; expected the name of the certificate")
			case valid < time.Second:
				return exit.Usagef("--valid %v: expected at least 1s", valid)
			}
			return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
				token, err := centrals.Invite(ctx, role, name, valid)
				if err != nil {
					return err
				}
				if role == string(pki.Host) {
					noteUndeclared(ctx, cmd.ErrOrStderr(), centrals, name)
				}
				if c.json {
					return c.printJSON(map[string]string{"token": token})
				}
				_, err = fmt.Fprintln(c.out, token)
				return err
			})
		},
	}
	verb.Flags().StringVar(&role, "role", "", "host, central, admin or reader")
	verb.Flags().StringVar(&name, "name", "", "name of the certificate")
	verb.Flags().DurationVar(&valid, "valid", time.Hour, "validity of the token")
	return verb
}

// noteUndeclared writes a warning to w if no host of this name is declared. Centrals refuse the
// certificate of such a host until it is.
func noteUndeclared(ctx context.Context, w io.Writer, centrals *client.Client, name string) {
	fleet, err := centrals.List(ctx, &wire.ListRequest{Hosts: true})
	if err != nil {
		return // the warning is not worth an error: the enrolment token is valid in any case
	}
	if _, declared := fleet.Hosts.Lookup(name); !declared {
		fmt.Fprintf(w, "host %s is not declared: weft host add %s endpoint=IP; until then centrals refuse it\n", name, name)
	}
}

const revokeHelp = `Refuses certificates: all of a role and a name that were issued until now, or the one with a
serial number, which centrals log and openssl x509 -noout -serial -in cert.pem prints. Running
sessions end at once on all centrals that reach the store. After a revocation by name, enrol
with a new token. A revoked host forwards with what it knows: to take its ports elsewhere, see
weft port set. The certificates of centrals cannot be revoked.`

func (c *command) revokeVerb() *cobra.Command {
	var r wire.RevokeRequest
	verb := &cobra.Command{
		Use: "revoke --role ROLE --name NAME|--serial HEX", Short: "refuse certificates", Long: revokeHelp, Args: words(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if byName := r.Role != "" || r.Name != ""; byName == (r.Serial != "") || byName && (r.Role == "" || r.Name == "") {
				return exit.Usagef("expected --role and --name, or --serial")
			}
			return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
				revoked, err := centrals.Revoke(ctx, &r)
				if err != nil {
					return err
				}
				if c.json {
					return c.printJSON(revocationOf(revoked))
				}
				verb := "revoked"
				if r.Undo {
					verb = "no longer revoked"
				}
				_, err = fmt.Fprintf(c.out, "%s: %s\n", verb, revocationOf(revoked).subject())
				return err
			})
		},
	}
	verb.Flags().StringVar(&r.Role, "role", "", "host, admin or reader")
	verb.Flags().StringVar(&r.Name, "name", "", "name in the certificates")
	verb.Flags().StringVar(&r.Serial, "serial", "", "serial number of a certificate")
	verb.Flags().BoolVar(&r.Undo, "undo", false, "delete the revocation")
	return verb
}

// revocation is the JSON output for a revocation. It refuses one certificate by serial number, or all
// certificates of a role and a name.
type revocation struct {
	Serial  string    `json:"serial,omitempty"`
	Role    string    `json:"role,omitempty"`
	Name    string    `json:"name,omitempty"`
	Revoked time.Time `json:"revoked"`
	By      string    `json:"by"`
}

func revocationOf(r *wire.Revocation) revocation {
	return revocation{r.GetSerial(), r.GetRole(), r.GetName(), time.Unix(r.GetRevokedS(), 0).UTC(), r.GetBy()}
}

func (r revocation) subject() string {
	if r.Serial != "" {
		return "serial number " + r.Serial
	}
	return "certificates of " + r.Role + " " + r.Name
}

func (c *command) revocationsVerb() *cobra.Command {
	return &cobra.Command{
		Use: "revocations", Short: "list the revoked certificates", Args: words(0, 0),
		RunE: func(*cobra.Command, []string) error {
			return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
				all, err := centrals.Revocations(ctx)
				if err != nil {
					return err
				}
				list := make([]revocation, len(all))
				for i, r := range all {
					list[i] = revocationOf(r)
				}
				if c.json {
					return c.printJSON(list)
				}
				w := c.table("ROLE\tNAME\tSERIAL\tREVOKED\tBY")
				for _, r := range list {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", dash(r.Role), dash(r.Name), dash(r.Serial), r.Revoked.Format(time.RFC3339), r.By)
				}
				return w.Flush()
			})
		},
	}
}

const enrolHelp = `Turns a token into a certificate and saves it, its key and the CA's certificate in
--central-certs. The central must show the CA that the token names.`

func (c *command) enrolVerb() *cobra.Command {
	var token string
	verb := &cobra.Command{
		Use: "enrol --token TOKEN|-", Short: "turn a token into a certificate in --central-certs", Long: enrolHelp, Args: words(0, 0),
		RunE: func(*cobra.Command, []string) error { return c.enrol(token) },
	}
	verb.Flags().StringVar(&token, "token", "", "the token, or - to read it from standard input, which other users cannot see")
	return verb
}

func (c *command) enrol(token string) error {
	if token == "-" {
		if _, err := fmt.Fscan(c.stdin, &token); err != nil {
			return exit.Usagef("--token -: no token on standard input")
		}
	}
	if _, err := pki.ParseToken(token); err != nil {
		return exit.Usagef("--token: %v", err)
	}
	addresses, err := c.centralAddresses()
	if err != nil {
		return err
	}
	files := pki.FilesIn(c.fleet.certs)
	if _, err := os.Stat(files.Certificate); err == nil {
		return exit.Usagef("%s is there already; remove it first, or give another --central-certs", files.Certificate)
	}
	name, err := client.Enrol(context.Background(), addresses, token, files)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(map[string]string{"name": name, "certificate": files.Certificate})
	}
	_, err = fmt.Fprintf(c.out, "%s has a certificate in %s\n", name, c.fleet.certs)
	return err
}
