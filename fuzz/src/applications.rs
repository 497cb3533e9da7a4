//! Requests to small applications.

use isola_files::{MAX_REQUEST, Method, Request, RequestError};
use isola_primes::request::{MAX_NUMBER, parse};

/// Parses the bytes as an HTTP request to `files serve`. A complete request must have a permitted method and a valid
/// path; an incomplete one must be shorter than the limit.
pub fn files(bytes: &[u8]) {
    match Request::parse(bytes) {
        Ok(Some(request)) => {
            assert!(matches!(request.method, Method::Get | Method::Head));
            assert!(request.path.starts_with('/') && !request.path.contains('\0'));
        }
        Ok(None) => assert!(bytes.len() < MAX_REQUEST),
        Err(RequestError::TooLong | RequestError::Malformed | RequestError::Method) => {}
    }
}

/// Parses a datagram to `primes`. A number within the limit must survive formatting and another parse.
pub fn primes(bytes: &[u8]) {
    let Ok(number) = parse(bytes, MAX_NUMBER) else { return };
    assert!(number <= MAX_NUMBER);
    assert_eq!(parse(number.to_string().as_bytes(), MAX_NUMBER), Ok(number));
}
