// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"weft/central/pki"
	"weft/central/wire"
	"weft/cmd/exit"
)

// joinTimeout limits the time in which the command join gets its certificate from a running central.
const joinTimeout = 30 * time.Second

func (s *settings) register(cmd *cobra.Command, data *string) {
	f := cmd.Flags()
	f.StringVar(data, "data", defaultData, "directory of the central")
	f.StringVar(&s.Address, "address", "", "HOST:PORT that hosts, people and other centrals dial")
	f.StringVar(&s.Listen, "listen", "", "HOST:PORT to listen on (default: --address)")
	f.StringVar(&s.Peer, "peer", "", "HOST:PORT of the embedded etcd for other centrals (default: the port after that of --address)")
	f.StringVar(&s.Metrics, "metrics", "", "HOST:PORT of Prometheus metrics and health, as in 127.0.0.1:7702")
	f.StringSliceVar(&s.Etcd, "etcd", nil, "URLs of an etcd that runs already, instead of the embedded one")
	f.StringVar(&s.EtcdCertificate, "etcd-certificate", "", "client's certificate for --etcd, PEM")
	f.StringVar(&s.EtcdKey, "etcd-key", "", "key of --etcd-certificate, PEM")
	f.StringVar(&s.EtcdCA, "etcd-ca", "", "CA of --etcd, PEM")
	f.IntVar(&s.EtcdMaxTxnOps, "etcd-max-txn-ops", 0, "option --max-txn-ops of --etcd (default: 128)")
	f.Int64Var(&s.QuotaMiB, "quota-mib", 0, "limit of the embedded etcd's database in MiB (default: 2048)")
}

// complete sets the defaults of missing settings, and returns an error if a setting is wrong.
func (s *settings) complete() error {
	if len(s.Etcd) > 0 {
		s.Peer = ""
	} else if s.Peer == "" {
		s.Peer = nextPort(s.Address)
	}
	return s.check()
}

func initCommand() *cobra.Command {
	var s settings
	var data string
	cmd := &cobra.Command{
		Use: "init --name NAME --address HOST:PORT", Short: "prepare the first central of a fleet", Args: exactly(0, "flags only"),
		Long: `Prepare the first central of a fleet. It makes a CA, the central's certificate, and an
administrator's certificate in DATA/admin. With --ca, --certificate and --key it takes the
site's instead: the certificate's organizational unit must be "central", and its names
must include ` + pki.CentralName + `.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.complete(); err != nil {
				return err
			}
			if err := fresh(data); err != nil {
				return err
			}
			if err := s.makeKeys(data); err != nil {
				return err
			}
			if err := s.save(data); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "prepared %s; start it: weft-central run --data %s\n", s.Name, data)
			return nil
		},
	}
	s.register(cmd, &data)
	f := cmd.Flags()
	f.StringVar(&s.Name, "name", "", "name of the central, unique in the fleet")
	f.StringVar(&s.CA, "ca", "", "certificate of the site's CA, PEM")
	f.StringVar(&s.CAKey, "ca-key", "", "key of --ca, PEM, with which the central signs certificates (default: it signs none)")
	f.StringVar(&s.Certificate, "certificate", "", "the central's certificate of the site's CA, PEM")
	f.StringVar(&s.Key, "key", "", "key of --certificate, PEM")
	return cmd
}

// makeKeys makes a CA, a certificate for the central and one for an administrator. If the flags name
// files of the site's own CA, makeKeys only checks these files.
func (s *settings) makeKeys(data string) error {
	if s.CA != "" || s.Certificate != "" || s.Key != "" || s.CAKey != "" {
		return s.checkSite()
	}
	ca, err := pki.NewCA("weft " + s.Name)
	if err != nil {
		return err
	}
	if err := ca.Save(data); err != nil {
		return err
	}
	for _, h := range []struct {
		dir, name string
		role      pki.Role
		addresses []string
	}{
		{data, s.Name, pki.Central, s.addresses()},
		{filepath.Join(data, "admin"), "admin", pki.Admin, nil},
	} {
		key, csr, err := pki.NewKey(h.addresses...)
		if err != nil {
			return err
		}
		cert, err := ca.Sign(csr, h.name, h.role, pki.DefaultLife)
		if err != nil {
			return err
		}
		if err := pki.FilesIn(h.dir).Save(cert, key, ca.DER()); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) checkSite() error {
	if s.CA == "" || s.Certificate == "" || s.Key == "" {
		return exit.Usagef("the site's CA: expected --ca, --certificate and --key")
	}
	for _, p := range []*string{&s.CA, &s.CAKey, &s.Certificate, &s.Key} {
		if *p == "" {
			continue
		}
		absolute, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = absolute
	}
	keys, err := pki.Load(s.files(""))
	if err != nil {
		return exit.Usagef("%v", err)
	}
	if _, role, err := keys.Identity(); err != nil || role != pki.Central {
		return exit.Usagef("%s: role %q; expected a certificate with the organizational unit central", s.Certificate, role)
	}
	if s.CAKey != "" {
		if _, err := pki.LoadCA(s.CA, s.CAKey); err != nil {
			return exit.Usagef("%v", err)
		}
	}
	return nil
}

func joinCommand() *cobra.Command {
	var s settings
	var data, tokenText string
	cmd := &cobra.Command{
		Use: "join --token TOKEN --address HOST:PORT CENTRAL", Short: "prepare a further central of a fleet",
		Long: `Prepare a further central of a fleet. CENTRAL is HOST:PORT of one that runs. The token
comes from weft central invite --role central --name NAME and works once. Run the new
central soon: the others wait for its member of etcd.`,
		Args: exactly(1, "HOST:PORT of a central that runs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			token, err := pki.ParseToken(tokenText)
			if err != nil {
				return exit.Usagef("%v", err)
			}
			s.Name = "joining" // the token has the name
			if err := s.complete(); err != nil {
				return err
			}
			if err := checkAddress("central", args[0]); err != nil {
				return err
			}
			if err := fresh(data); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), joinTimeout)
			defer cancel()
			if err := s.enrol(ctx, token, args[0], data); err != nil {
				return err
			}
			if err := s.save(data); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "prepared %s; start it: weft-central run --data %s\n", s.Name, data)
			return nil
		},
	}
	s.register(cmd, &data)
	cmd.Flags().StringVar(&tokenText, "token", "", "token of an invitation with the role central")
	return cmd
}

// enrol sends the token to a running central. It gets the new central's certificate,
// the CA and the list of etcd's members, and saves them in the directory data.
func (s *settings) enrol(ctx context.Context, token pki.Token, central, data string) error {
	key, csr, err := pki.NewKey(s.addresses()...)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(central, grpc.WithTransportCredentials(credentials.NewTLS(token.Enrol())))
	if err != nil {
		return exit.Usagef("central %s: %v", central, err)
	}
	defer conn.Close()
	request := &wire.EnrolRequest{Token: token.Text(), Csr: csr}
	if len(s.Etcd) == 0 {
		request.Peer = "https://" + s.Peer
	}
	got, err := wire.NewEnrolmentClient(conn).Enrol(ctx, request)
	if err != nil {
		return fmt.Errorf("central %s: %s", central, status.Convert(err).Message())
	}
	if len(got.CaKey) == 0 {
		return exit.Usagef("the token is not for a central; invite with --role central")
	}
	ca, err := pki.ParseCA(got.Ca, got.CaKey)
	if err != nil {
		return err
	}
	if ca.Digest() != token.CA() {
		return fmt.Errorf("central %s gave another CA than the token's", central)
	}
	if err := ca.Save(data); err != nil {
		return err
	}
	s.Name, s.Cluster, s.Existing = got.Name, got.Cluster, got.Cluster != ""
	return pki.FilesIn(data).Save(got.Certificate, key, got.Ca)
}
