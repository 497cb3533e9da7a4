//! Requests to small applications.

use isola_files::{MAX_REQUEST, Method, Rejected, Request};
use isola_primes::request::{MAX_NUMBER, parse};

/// HTTP requests to `files serve`: whole, incomplete, or refused; a prefix of a whole one is never another whole one.
pub fn files(bytes: &[u8]) {
    match Request::parse(bytes) {
        Ok(Some(request)) => {
            assert!(matches!(request.method, Method::Get | Method::Head));
            assert!(request.path.starts_with('/') && !request.path.contains('\0'));
        }
        Ok(None) => assert!(bytes.len() < MAX_REQUEST),
        Err(Rejected::TooLong | Rejected::Malformed | Rejected::Method) => {}
    }
}

/// Datagrams to `primes`: a number within the limit reads the same when it is written again.
pub fn primes(bytes: &[u8]) {
    let Ok(number) = parse(bytes, MAX_NUMBER) else { return };
    assert!(number <= MAX_NUMBER);
    assert_eq!(parse(number.to_string().as_bytes(), MAX_NUMBER), Ok(number));
}
