// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"weft/cmd/exit"
)

// restoreBump is added to the revision of a store that is restored from a backup. A new binding of a
// port gets the store's revision as its generation. This generation must be larger than all that hosts
// saw after the backup.
const restoreBump = 1 << 32

func restoreCommand() *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use: "restore BACKUP", Short: "replace the store of a stopped central by a backup of weft central save",
		Long: `Replace the store of a stopped central by a backup of weft central save. Stop all
centrals first. The restored one is alone in its cluster; the others join it again with
new tokens and empty directories. The old store is kept beside the new one.`,
		Args: exactly(1, "the file of a backup"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := readSettings(data)
			if err != nil {
				return err
			}
			if len(s.Etcd) > 0 {
				return exit.Usagef("the store is an etcd of the site; restore it with etcdutl snapshot restore")
			}
			if _, err := os.Stat(args[0]); err != nil {
				return exit.Usagef("%v; expected a file of weft central save", err)
			}
			if conn, err := os.Stat(filepath.Join(data, "etcd.sock")); err == nil && conn.Mode()&os.ModeSocket != 0 && answers(filepath.Join(data, "etcd.sock")) {
				return exit.Usagef("the central of %s runs; stop it first", data)
			}
			return s.restore(cmd, data, args[0])
		},
	}
	cmd.Flags().StringVar(&data, "data", defaultData, "directory of the central")
	return cmd
}

func (s *settings) restore(cmd *cobra.Command, data, backup string) error {
	dir, fresh := filepath.Join(data, "etcd"), filepath.Join(data, "etcd.restored")
	if err := os.RemoveAll(fresh); err != nil { // of a restore that failed
		return err
	}
	peer := "https://" + s.Peer
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: backup, Name: s.Name, OutputDataDir: fresh,
		PeerURLs: []string{peer}, InitialCluster: s.Name + "=" + peer, InitialClusterToken: fmt.Sprint("restored-", time.Now().UnixNano()),
		RevisionBump: restoreBump, MarkCompacted: true,
	})
	if err != nil {
		return fmt.Errorf("%s cannot be restored: %w; expected a complete file of weft central save", backup, err)
	}
	old := dir + time.Now().UTC().Format(".20060102T150405Z")
	if err := os.Rename(dir, old); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := os.Rename(fresh, dir); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "restored %s; the old store is %s; start it: weft-central run --data %s\n", s.Name, old, data)
	return nil
}

func answers(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}
