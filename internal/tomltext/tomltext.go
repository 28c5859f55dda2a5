// SPDX-License-Identifier: Apache-2.0

// Package tomltext decodes TOML files that users write, and is strict. Its errors are one line each,
// in the words of the file instead of the names of Go types.
package tomltext

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// unknownKey is the error for a key that the file may not have.
type unknownKey struct {
	Line  int
	Key   string   // dotted
	Known []string // the keys of its section
}

func (e *unknownKey) Error() string {
	text := fmt.Sprintf("line %d: %s: unknown key", e.Line, e.Key)
	if len(e.Known) > 0 {
		text += "; expected one of " + strings.Join(e.Known, ", ")
	}
	return text
}

// Decode fills target, a pointer to a struct with toml tags, from text. Its error for an unknown key
// is an *unknownKey.
func Decode(text []byte, target any) error {
	err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(target)
	var unknown *toml.StrictMissingError
	var wrong *toml.DecodeError
	switch {
	case errors.As(err, &unknown):
		row, _ := unknown.Errors[0].Position()
		key := unknown.Errors[0].Key()
		return &unknownKey{row, dotted(key), Keys(reflect.TypeOf(target), key[:max(len(key)-1, 0)])}
	case errors.As(err, &wrong):
		row, _ := wrong.Position()
		return fmt.Errorf("line %d: %s", row, problem(wrong, reflect.TypeOf(target)))
	case err != nil:
		return errors.New(trimmed(err))
	}
	return nil
}

// problem returns the text of an error of the TOML library. For a value of the wrong type, the library
// names the Go type of the field; problem instead names the kind of value that the file should have. For an
// address or a prefix, package netip names its function; problem shows an example instead.
func problem(wrong *toml.DecodeError, target reflect.Type) string {
	reason := trimmed(wrong)
	if address := wrongAddress.FindStringSubmatch(reason); address != nil {
		reason = address[2] + ": expected " + addressKinds[address[1]]
	}
	key := dotted(wrong.Key())
	given := wrongType.FindStringSubmatch(reason)
	switch {
	case key == "":
		return reason
	case given == nil:
		return key + ": " + reason
	}
	return fmt.Sprintf("%s: expected %s, not %s", key, expected(target, wrong.Key()), given[1])
}

// wrongType matches an error text of the TOML library that names a Go type. Its group is the kind of value
// in the file.
var wrongType = regexp.MustCompile(`^cannot (?:decode TOML|store an?) (.+?) (?:into|in an?) .*$`)

// wrongAddress matches an error text of package netip. Its groups are the function and the quoted value.
var wrongAddress = regexp.MustCompile(`^(?:netip\.)?Parse(Addr|Prefix)\((".*")\): .*$`)

// addressKinds describes the values that functions of package netip accept.
var addressKinds = map[string]string{
	"Addr":   "an address, as in 10.0.0.1 or fd00::1",
	"Prefix": "a prefix, as in 10.0.0.0/24 or fd00::/64",
}

// maxKey limits the length in bytes of a key in an error text. A longer key is cut and ends with
// "...".
const maxKey = 100

func dotted(key []string) string {
	name := strings.Join(key, ".")
	if len(name) > maxKey {
		name = strings.ToValidUTF8(name[:maxKey], "") + "..."
	}
	return name
}

func trimmed(err error) string {
	reason := err.Error()
	for strings.HasPrefix(reason, "toml: ") {
		reason = strings.TrimPrefix(reason, "toml: ")
	}
	return reason
}

// Keys returns the keys that a section of a TOML file may have. t is the Go type of the whole file. The
// argument section has the names of the section, from the outermost; nil: the top level. Keys returns nil
// if there is no such section. If the section's type embeds structs, their keys count as keys of the
// section.
func Keys(t reflect.Type, section []string) (keys []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("toml"), ",")
		switch {
		case field.Anonymous && name == "":
			keys = append(keys, Keys(field.Type, section)...)
		case len(section) == 0 && name != "":
			keys = append(keys, name)
		case len(section) > 0 && name == section[0]:
			return Keys(field.Type, section[1:])
		}
	}
	return keys
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

// expected returns, as text, the kind of value that the field for the given key of t needs.
func expected(t reflect.Type, key []string) string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && len(key) > 0 {
		t = t.Elem()
	}
	if len(key) > 0 && t.Kind() == reflect.Struct {
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("toml"), ",")
			if name == key[0] {
				return expected(t.Field(i).Type, key[1:])
			}
		}
	}
	if reflect.PointerTo(t).Implements(textUnmarshaler) {
		return "a string in quotes"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string in quotes"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a number"
	case reflect.Slice:
		return fmt.Sprintf("a list in brackets whose entries are each %s", expected(t.Elem(), nil))
	case reflect.Struct:
		return "a table with keys of its own"
	}
	return "another kind of value"
}
