//! The parser of requests: the method and path of HTTP/1.1 (RFC 9112, 2 and 3).

use alloc::string::String;
use percent_encoding::percent_decode_str;

/// The maximum length of a request's head, in bytes.
pub const MAX_REQUEST: usize = 8192;

/// The maximum number of header fields.
const MAX_FIELDS: usize = 64;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The path, decoded and without a query.
    pub path: String,
}

/// The methods that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Requests the head and the body.
    Get,
    /// Requests the head only.
    Head,
}

/// The reasons why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// It is not HTTP, or its path is not valid text.
    Malformed,
    /// Its method is not supported.
    Method,
    /// Its head is longer than [`MAX_REQUEST`], or has too many fields.
    TooLong,
}

impl Request {
    /// Parses the request at the start of `bytes`; returns `None` if it is incomplete.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, RequestError> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(len)) if has_bare_lf(&bytes[..len]) => {
                return Err(RequestError::Malformed);
            }
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) if bytes.len() < MAX_REQUEST => return Ok(None),
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Err(RequestError::TooLong);
            }
            Err(_) => return Err(RequestError::Malformed),
        }
        let method = match request.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            _ => return Err(RequestError::Method),
        };
        let target = request.path.ok_or(RequestError::Malformed)?;
        let path = target.split(['?', '#']).next().unwrap_or_default();
        let path = percent_decode_str(path).decode_utf8().map_err(|_| RequestError::Malformed)?;
        if !path.starts_with('/') || path.contains('\0') {
            return Err(RequestError::Malformed);
        }
        Ok(Some(Self { method, path: path.into_owned() }))
    }
}

/// Returns whether a line ends in LF without CR. A server may accept that (RFC 9112, 2.2), but then a proxy in front of
/// it could split the same bytes into other requests.
fn has_bare_lf(head: &[u8]) -> bool {
    let before = [&0].into_iter().chain(head);
    head.iter().zip(before).any(|(byte, before)| *byte == b'\n' && *before != b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn get(path: &str) -> Result<Option<Request>, RequestError> {
        Ok(Some(Request { method: Method::Get, path: path.into() }))
    }

    #[test]
    fn a_line_that_ends_in_lf_without_cr_is_rejected() {
        for request in
            ["GET / HTTP/1.1\nHost: x\n\n", "GET / HTTP/1.1\r\nHost: x\n\r\n", "\nGET / HTTP/1.0\r\n\r\n"]
        {
            assert_eq!(Request::parse(request.as_bytes()), Err(RequestError::Malformed), "{request:?}");
        }
    }

    #[test]
    fn the_path_is_decoded_and_its_query_dropped() {
        assert_eq!(Request::parse(b"GET /a%20b/c?d=e HTTP/1.1\r\nHost: x\r\n\r\n"), get("/a b/c"));
        assert_eq!(Request::parse(b"GET /%C3%BC HTTP/1.0\r\n\r\n"), get("/\u{fc}"));
        let head = Request::parse(b"HEAD / HTTP/1.1\r\n\r\n").unwrap().unwrap();
        assert_eq!(head.method, Method::Head);
    }

    #[test]
    fn an_incomplete_request_has_a_maximum_length() {
        assert_eq!(Request::parse(b""), Ok(None));
        assert_eq!(Request::parse(b"GET / HTTP/1.1\r\nHost"), Ok(None));
        let mut long = b"GET / HTTP/1.1\r\nX: ".to_vec();
        long.extend(vec![b'a'; MAX_REQUEST]);
        assert_eq!(Request::parse(&long), Err(RequestError::TooLong));
    }

    #[test]
    fn malformed_requests_are_rejected() {
        for bytes in [
            &b"\x00\x01\x02\x03"[..],
            b"GET /%ff HTTP/1.1\r\n\r\n",
            b"GET /%00 HTTP/1.1\r\n\r\n",
            b"GET x HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(Request::parse(bytes), Err(RequestError::Malformed), "{bytes:?}");
        }
        assert_eq!(Request::parse(b"PUT / HTTP/1.1\r\n\r\n"), Err(RequestError::Method));
    }
}
