// SPDX-License-Identifier: Apache-2.0

// Image writes a container image of weftd, weft and weft-central, without any other file, as an
// archive for "podman load" and "docker load".
//
//	image ARCH TAG DIRECTORY OUT
//
// DIRECTORY has the programs. The time of all files is SOURCE_DATE_EPOCH, so that the same
// programs give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("image: ")
	if len(os.Args) != 5 {
		log.Fatal("usage: image ARCH TAG DIRECTORY OUT")
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}

// write makes the archive from the programs in directory, and writes it to the file "out".
func write(arch, tag, directory, out string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	created := time.Unix(seconds, 0).UTC()
	reference, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	files, err := pack(directory, created)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	})
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	base, err := image.ConfigFile()
	if err != nil {
		return err
	}
	image, err = mutate.ConfigFile(image, configure(base.DeepCopy(), arch, created))
	if err != nil {
		return err
	}
	return tarball.WriteToFile(out, reference, image)
}

// configure completes the configuration of an image. The argument "file" describes the layers already.
func configure(file *v1.ConfigFile, arch string, created time.Time) *v1.ConfigFile {
	file.Architecture, file.OS = arch, "linux"
	file.Created = v1.Time{Time: created}
	file.Config.Entrypoint = []string{"/usr/bin/weftd"}
	file.Config.Env = []string{"PATH=/usr/bin"}
	file.Config.Labels = map[string]string{
		"org.opencontainers.image.title":    "weft",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	return file
}

// pack returns a tar of the programs in /usr/bin and of the directories that weftd uses.
func pack(directory string, modified time.Time) ([]byte, error) {
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	for _, dir := range []string{"usr/", "usr/bin/", "run/", "run/weft/", "var/", "var/lib/", "var/lib/weft/", "tmp/"} {
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: modified}); err != nil {
			return nil, err
		}
	}
	for _, program := range []string{"weft", "weft-central", "weftd"} {
		content, err := os.ReadFile(filepath.Join(directory, program))
		if err != nil {
			return nil, err
		}
		header := tar.Header{Name: "usr/bin/" + program, Mode: 0o755, Size: int64(len(content)), ModTime: modified}
		if err := archive.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(content); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}
