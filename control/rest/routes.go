// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"weft/control/access"
	"weft/datapath"
)

// maxHottest limits the requests for the hottest megaflows in progress, because each needs
// memory for two copies of the counts of all megaflows.
const maxHottest = 16

// Routes has the required role and the cost of each route of the API. Requests for
// other routes are refused.
//
// Captures show payload and therefore need the role Write. A live trace for the role
// Read shows only header fields.
var Routes = map[string]access.Route{
	"GET /v1/show":                   {Role: access.Read},
	"POST /v1/shutdown":              {Role: access.Write},
	"GET /v1/limits":                 {Role: access.Read},
	"GET /v1/routes":                 {Role: access.Read, Expensive: true},
	"GET /v1/log":                    {Role: access.Read},
	"POST /v1/log":                   {Role: access.Write},
	"GET /v1/bridges":                {Role: access.Read},
	"POST /v1/bridges":               {Role: access.Write},
	"PATCH /v1/bridges":              {Role: access.Write},
	"DELETE /v1/bridges/{name}":      {Role: access.Write},
	"GET /v1/ports":                  {Role: access.Read},
	"POST /v1/ports":                 {Role: access.Write},
	"PATCH /v1/ports/{name}":         {Role: access.Write},
	"DELETE /v1/ports/{name}":        {Role: access.Write},
	"POST /v1/changes":               {Role: access.Write, Body: access.LargeBody},
	"GET /v1/flows":                  {Role: access.Read, Expensive: true},
	"POST /v1/flows":                 {Role: access.Write, Body: access.LargeBody},
	"DELETE /v1/flows":               {Role: access.Write},
	"POST /v1/flows/diff":            {Role: access.Read, Expensive: true, Body: access.LargeBody},
	"GET /v1/groups":                 {Role: access.Read, Expensive: true},
	"POST /v1/groups":                {Role: access.Write, Body: access.LargeBody},
	"GET /v1/meters":                 {Role: access.Read, Expensive: true},
	"GET /v1/queues":                 {Role: access.Read, Expensive: true},
	"POST /v1/meters":                {Role: access.Write, Body: access.LargeBody},
	"GET /v1/tables":                 {Role: access.Read},
	"POST /v1/tables":                {Role: access.Write},
	"GET /v1/tlv-map":                {Role: access.Read},
	"POST /v1/tlv-map":               {Role: access.Write},
	"GET /v1/macs":                   {Role: access.Read, Expensive: true},
	"DELETE /v1/macs":                {Role: access.Write},
	"POST /v1/packet-out":            {Role: access.Write},
	"GET /v1/megaflows":              {Role: access.Read, Expensive: true},
	"GET /v1/hottest":                {Role: access.Read, Most: maxHottest, Readers: maxHottest / 2},
	"GET /v1/trace":                  {Role: access.Read},
	"GET /v1/trace/live":             {Role: access.Read, Stream: true, Readers: datapath.MaxCaptures / 2},
	"GET /v1/capture":                {Role: access.Write, Stream: true},
	"GET /v1/monitor":                {Role: access.Read, Stream: true},
	"GET /v1/conntrack":              {Role: access.Read, Stream: true},
	"DELETE /v1/conntrack":           {Role: access.Write},
	"GET /v1/conntrack/settings":     {Role: access.Read},
	"GET /v1/conntrack/expectations": {Role: access.Read},
	"POST /v1/conntrack/settings":    {Role: access.Write},
	"GET /metrics":                   {Role: access.Read, Expensive: true},
}
