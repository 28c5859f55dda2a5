// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"weft/central/client"
	"weft/central/pki"
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
		RunE: func(*cobra.Command, []string) error {
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
	verb.Flags().DurationVar(&valid, "valid", time.Hour, "life of the token")
	return verb
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
		if _, err := fmt.Fscan(c.in, &token); err != nil {
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
