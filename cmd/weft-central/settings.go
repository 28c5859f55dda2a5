// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"weft/central/pki"
	"weft/cmd/exit"
	"weft/internal/tomltext"
)

// settingsFile is the name of the file with the settings, in the directory of a
// central.
const settingsFile = "central.toml"

const (
	// maxQuotaMiB is the largest size limit of the database, in MiB, that etcd
	// recommends.
	maxQuotaMiB = 8 << 10
	// minTxnOps is the smallest limit of operations per etcd transaction that still
	// lets every request be applied.
	minTxnOps = 16
)

// settings are the contents of the settings file, which the commands init and join
// write, and the other commands read.
type settings struct {
	Name string `toml:"name"`
	// HOST:PORT to which hosts, people and other centrals connect
	Address string `toml:"address"`
	Listen  string `toml:"listen,omitempty"`  // default: address
	Metrics string `toml:"metrics,omitempty"` // HOST:PORT that serves metrics and health over HTTP; empty: none

	// Settings of the embedded etcd. Cluster and Existing are used only at its first
	// start.
	Peer     string `toml:"peer,omitempty"` // HOST:PORT that other members dial
	Cluster  string `toml:"cluster,omitempty"`
	Existing bool   `toml:"existing,omitempty"`
	// size limit of the embedded etcd's database in MiB; 0 means 2048, the default of package store
	QuotaMiB int64 `toml:"quota-mib,omitempty"`

	// The site's etcd, which replaces the embedded one if Etcd is not empty. Etcd has its URLs.
	Etcd            []string `toml:"etcd,omitempty"`
	EtcdCertificate string   `toml:"etcd-certificate,omitempty"`
	EtcdKey         string   `toml:"etcd-key,omitempty"`
	EtcdCA          string   `toml:"etcd-ca,omitempty"`
	// value of the option --max-txn-ops of the site's etcd; 0: store.DefaultOps
	EtcdMaxTxnOps int `toml:"etcd-max-txn-ops,omitempty"`

	// Paths of files: the central's certificate and key, and the CA if the site has a
	// CA of its own. Without ca-key the central cannot sign certificates.
	Certificate string `toml:"certificate,omitempty"`
	Key         string `toml:"key,omitempty"`
	CA          string `toml:"ca,omitempty"`
	CAKey       string `toml:"ca-key,omitempty"`
}

// check returns an error that says which setting is wrong and what is expected.
func (s *settings) check() error {
	if s.Name == "" || len(s.Name) > 64 || strings.ContainsAny(s.Name, "/,= \t\n") {
		return exit.Usagef("name %q: expected 1 to 64 characters without / , = and blanks", s.Name)
	}
	if err := checkAddress("address", s.Address); err != nil {
		return err
	}
	if s.QuotaMiB < 0 || s.QuotaMiB > maxQuotaMiB {
		return exit.Usagef("quota-mib %d: expected 1 to %d", s.QuotaMiB, maxQuotaMiB)
	}
	if s.EtcdMaxTxnOps != 0 && s.EtcdMaxTxnOps < minTxnOps {
		return exit.Usagef("etcd-max-txn-ops %d: expected at least %d", s.EtcdMaxTxnOps, minTxnOps)
	}
	if len(s.Etcd) == 0 {
		return checkAddress("peer", s.Peer)
	}
	if (s.EtcdCertificate == "") != (s.EtcdKey == "") {
		return exit.Usagef("etcd-certificate and etcd-key: expected both or neither")
	}
	return nil
}

func checkAddress(name, address string) error {
	host, port, err := net.SplitHostPort(address)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || portErr != nil || n == 0 {
		return exit.Usagef("%s %q: expected HOST:PORT that the others reach, as in 10.0.0.1:7700", name, address)
	}
	return nil
}

// nextPort returns the default of the setting peer: the given HOST:PORT with the port
// number plus one.
func nextPort(address string) string {
	host, port, err := net.SplitHostPort(address)
	n, portErr := strconv.Atoi(port)
	if err != nil || portErr != nil {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(n+1))
}

func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}

func (s *settings) addresses() []string {
	list := []string{hostOf(s.Address)}
	if h := hostOf(s.Peer); h != "" && h != list[0] {
		list = append(list, h)
	}
	return list
}

func (s *settings) files(data string) pki.Files {
	f := pki.FilesIn(data)
	if s.Certificate != "" {
		f = pki.Files{Certificate: s.Certificate, Key: s.Key, CA: s.CA}
	}
	return f
}

// save writes the settings file to the directory data. It fails if the directory
// already has one.
func (s *settings) save(data string) error {
	text, err := toml.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(data, settingsFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// fresh makes the directory of a new central. It fails if the directory already has a settings file.
func fresh(data string) error {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(data, settingsFile)); err == nil {
		return exit.Usagef("%s has a central already: run it, or give another --data", data)
	}
	return nil
}

// readSettings reads the settings file in a directory. An unknown key is an error.
func readSettings(data string) (*settings, error) {
	file := filepath.Join(data, settingsFile)
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, exit.Usagef("%s is not there; make it with weft-central init or join", file)
	}
	if err != nil {
		return nil, err
	}
	s := &settings{}
	if err := tomltext.Decode(text, s); err != nil {
		return nil, exit.Usagef("%s: %v", file, err)
	}
	if s.Listen == "" {
		s.Listen = s.Address
	}
	return s, s.check()
}
