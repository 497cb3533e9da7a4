//! HTTP requests to the metrics server of the host tool.

use isola_host::metrics::request::{MAX_HEAD_BYTES, parse};

/// Parses a request as it arrives, byte by byte. The server never waits for more than the maximum length of a head, and
/// the decision about a request does not depend on the number of parts.
pub fn requests(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let decided = (0..=bytes.len()).find_map(|len| parse(&bytes[..len]));
    if bytes.len() == MAX_HEAD_BYTES {
        assert!(decided.is_some());
    }
    if let Some(decision) = parse(bytes) {
        assert_eq!(decided, Some(decision));
    }
}
