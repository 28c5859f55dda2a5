package packet

// CRCDelta lets the tests compare it with hash/crc32.
var CRCDelta = crcDelta
