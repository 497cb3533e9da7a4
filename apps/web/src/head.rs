//! The head of a request (RFC 9112, 2 to 6): parsed by `httparse`, checked here.

use crate::response::Status;
use core::mem::MaybeUninit;

/// The maximum length of a request's head, in bytes.
pub const MAX_HEAD_BYTES: usize = 8 << 10;

/// The maximum length of a request's target, in bytes.
pub const MAX_TARGET_BYTES: usize = 4 << 10;

/// The maximum number of header fields.
pub const MAX_FIELDS: usize = 64;

/// The methods that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Requests the head and the body of a response.
    Get,
    /// Requests the head only.
    Head,
}

/// Whether the connection remains open after the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// It remains open, by default.
    KeepAlive,
    /// It remains open, and the response confirms that to a client of HTTP/1.0.
    AnnouncedKeepAlive,
    /// It closes.
    Close,
}

/// A request without a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// The method.
    pub method: Method,
    /// The path with its query, not decoded.
    pub target: &'a str,
    /// Whether the connection remains open.
    pub persistence: Persistence,
    /// `If-Match`.
    pub if_match: Option<&'a [u8]>,
    /// `If-Unmodified-Since`.
    pub if_unmodified_since: Option<&'a [u8]>,
    /// `If-None-Match`.
    pub if_none_match: Option<&'a [u8]>,
    /// `If-Modified-Since`.
    pub if_modified_since: Option<&'a [u8]>,
    /// `If-Range`.
    pub if_range: Option<&'a [u8]>,
    /// `Range`.
    pub range: Option<&'a [u8]>,
}

/// A rejected request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the response.
    pub status: Status,
    /// Whether the connection remains open: not if the start of the next request is uncertain.
    pub persistence: Persistence,
    /// The method, which decides whether the response has a body.
    pub method: Method,
}

impl Refusal {
    const fn ending(status: Status) -> Self {
        Self { status, persistence: Persistence::Close, method: Method::Get }
    }
}

/// The result of parsing input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// An incomplete head.
    Incomplete,
    /// A request, and the length of its head.
    Request(Head<'a>, usize),
    /// A rejected request, and the length of its head.
    Refused(Refusal, usize),
}

impl Parsed<'_> {
    /// Returns the length of the head; `None` if it is incomplete.
    #[inline]
    pub(crate) fn len(&self) -> Option<usize> {
        match self {
            Self::Incomplete => None,
            Self::Request(_, len) | Self::Refused(_, len) => Some(*len),
        }
    }
}

/// The header fields that concern the request as a whole.
#[derive(Default)]
struct Framing<'a> {
    hosts: usize,
    content_length: Option<&'a [u8]>,
    lengths_differ: bool,
    transfer_coding: bool,
    expects_unknown: bool,
    close: bool,
    keep_alive: bool,
}

/// Parses the request at the start of `bytes`.
pub fn parse(bytes: &[u8]) -> Parsed<'_> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    let len = match request.parse_with_uninit_headers(bytes, &mut fields) {
        Ok(httparse::Status::Complete(len)) if len > MAX_HEAD_BYTES => {
            return Parsed::Refused(Refusal::ending(Status::HeadTooLarge), len);
        }
        Ok(httparse::Status::Complete(len)) if has_bare_lf(&bytes[..len], &request) => {
            return Parsed::Refused(Refusal::ending(Status::BadRequest), len);
        }
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Parsed::Incomplete,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Parsed::Refused(Refusal::ending(Status::HeadTooLarge), bytes.len());
        }
        Err(httparse::Error::Version) => {
            return Parsed::Refused(Refusal::ending(Status::VersionNotSupported), bytes.len());
        }
        Err(_) => return Parsed::Refused(Refusal::ending(Status::BadRequest), bytes.len()),
    };
    match judge(&request) {
        Ok(head) => Parsed::Request(head, len),
        Err(refusal) => Parsed::Refused(refusal, len),
    }
}

/// Returns whether a line of the head `bytes`, which was parsed into `request`, ends in LF without CR. A server may
/// accept that (RFC 9112, 2.2); this one does not, as a proxy in front of it could split the same bytes into other
/// lines, and so into other requests.
fn has_bare_lf(bytes: &[u8], request: &httparse::Request<'_, '_>) -> bool {
    let offset_of = |text: &str| text.as_ptr().addr() - bytes.as_ptr().addr();
    // The start of a line follows an LF; the byte before that must be a CR.
    let follows_crlf = |start: usize| start >= 2 && bytes[start - 2] == b'\r';
    let begin = request.method.map_or(0, offset_of);
    let empty_lines = bytes[..begin].chunks(2).all(|line| line == b"\r\n");
    let end = bytes.len();
    !(empty_lines
        && request.headers.iter().all(|field| follows_crlf(offset_of(field.name)))
        && follows_crlf(end)
        && follows_crlf(end - 2))
}

fn judge<'b>(request: &httparse::Request<'_, 'b>) -> Result<Head<'b>, Refusal> {
    let bad = Refusal::ending(Status::BadRequest);
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(bad);
    };
    let mut framing = Framing::default();
    let mut head = Head {
        method: Method::Get,
        target,
        persistence: Persistence::KeepAlive,
        if_match: None,
        if_unmodified_since: None,
        if_none_match: None,
        if_modified_since: None,
        if_range: None,
        range: None,
    };
    for field in request.headers.iter() {
        read(field.name, field.value, &mut head, &mut framing);
    }
    head.persistence = match minor {
        1 if !framing.close => Persistence::KeepAlive,
        0 if framing.keep_alive && !framing.close => Persistence::AnnouncedKeepAlive,
        _ => Persistence::Close,
    };
    // A request that two servers could interpret differently is invalid (RFC 9112, 3.2 and 6.3).
    let has_one_host = framing.hosts == 1 || (minor == 0 && framing.hosts == 0);
    if !has_one_host || framing.lengths_differ {
        return Err(bad);
    }
    if framing.transfer_coding {
        // A request with both fields could be interpreted in two ways.
        let status =
            if framing.content_length.is_some() { Status::BadRequest } else { Status::NotImplemented };
        return Err(Refusal::ending(status));
    }
    let has_content = match framing.content_length {
        None => false,
        Some(len) if len.is_empty() || !len.iter().all(u8::is_ascii_digit) => return Err(bad),
        Some(len) => len.iter().any(|digit| *digit != b'0'),
    };
    if has_content {
        // The content is not read, so the start of the next request is unknown.
        head.persistence = Persistence::Close;
    }
    let refuse = |status| Err(Refusal { status, persistence: head.persistence, method: Method::Get });
    head.method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" | "PUT" | "DELETE" | "OPTIONS" | "TRACE" | "PATCH" | "CONNECT" => {
            return refuse(Status::MethodNotAllowed);
        }
        _ => return refuse(Status::NotImplemented),
    };
    if has_content {
        return Err(refusal(Status::ContentTooLarge, &head));
    }
    if framing.expects_unknown {
        return Err(Refusal { method: head.method, ..refusal(Status::ExpectationFailed, &head) });
    }
    if target.len() > MAX_TARGET_BYTES {
        return Err(Refusal { method: head.method, ..refusal(Status::TargetTooLong, &head) });
    }
    head.target = origin_form(target).ok_or(bad)?;
    Ok(head)
}

fn refusal(status: Status, head: &Head<'_>) -> Refusal {
    Refusal { status, persistence: head.persistence, method: head.method }
}

/// Records one header field.
fn read<'b>(name: &str, value: &'b [u8], head: &mut Head<'b>, framing: &mut Framing<'b>) {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    // The length distinguishes most fields.
    match name.len() {
        4 if is("host") => framing.hosts += 1,
        5 if is("range") => head.range = Some(value),
        6 if is("expect") => framing.expects_unknown |= !value.eq_ignore_ascii_case(b"100-continue"),
        8 if is("if-match") => head.if_match = Some(value),
        8 if is("if-range") => head.if_range = Some(value),
        10 if is("connection") => {
            for option in value.split(|byte| *byte == b',') {
                framing.close |= option.trim_ascii().eq_ignore_ascii_case(b"close");
                framing.keep_alive |= option.trim_ascii().eq_ignore_ascii_case(b"keep-alive");
            }
        }
        13 if is("if-none-match") => head.if_none_match = Some(value),
        14 if is("content-length") => {
            framing.lengths_differ |= framing.content_length.is_some_and(|len| len != value);
            framing.content_length = Some(value);
        }
        17 if is("if-modified-since") => head.if_modified_since = Some(value),
        17 if is("transfer-encoding") => framing.transfer_coding = true,
        19 if is("if-unmodified-since") => head.if_unmodified_since = Some(value),
        _ => {}
    }
}

/// Returns the path and query of a target, which may be a whole URI (RFC 9112, 3.2.2).
fn origin_form(target: &str) -> Option<&str> {
    if target.starts_with('/') {
        return Some(target);
    }
    let scheme = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"))?;
    let rest = &target[scheme.len()..];
    match rest.find(['/', '?']) {
        Some(0) => None,
        Some(end) if rest[end..].starts_with('/') => Some(&rest[end..]),
        _ => Some("/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;
    use isola_proves::proves;

    fn head(text: &str) -> Head<'_> {
        match parse(text.as_bytes()) {
            Parsed::Request(head, len) if len == text.len() => head,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn refused(text: &str) -> (Status, Persistence) {
        match parse(text.as_bytes()) {
            Parsed::Refused(refusal, _) => (refusal.status, refusal.persistence),
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[proves(
        "RFC 9112 9.3",
        "a connection persists unless either side sends close; with HTTP/1.0 it closes unless both send keep-alive."
    )]
    #[test]
    fn version_and_options_decide_whether_a_connection_persists() {
        for (request, expected) in [
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", Persistence::KeepAlive),
            ("GET / HTTP/1.1\r\nHost: x\r\nConnection: Close\r\n\r\n", Persistence::Close),
            ("GET / HTTP/1.1\r\nHost: x\r\nConnection: x, close\r\n\r\n", Persistence::Close),
            ("GET / HTTP/1.0\r\n\r\n", Persistence::Close),
            ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", Persistence::AnnouncedKeepAlive),
            ("GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", Persistence::Close),
        ] {
            assert_eq!(head(request).persistence, expected, "{request:?}");
        }
    }

    #[test]
    fn lines_end_in_crlf_and_not_in_bare_lf() {
        let lawful = "\r\nGET / HTTP/1.1\r\nHost: x\r\nA: b\r\n\r\n";
        head(lawful);
        let ends: Vec<usize> = lawful.match_indices('\r').map(|(at, _)| at).collect();
        for at in ends {
            let request = [&lawful[..at], &lawful[at + 1..]].concat();
            assert_eq!(refused(&request), (Status::BadRequest, Persistence::Close), "{request:?}");
        }
        assert_eq!(refused("GET / HTTP/1.0\n\n"), (Status::BadRequest, Persistence::Close));
        assert_eq!(refused("GET / HTTP/1.0\r\n\n"), (Status::BadRequest, Persistence::Close));
    }

    #[proves("RFC 9112 3.2", "a request of HTTP/1.1 without exactly one Host is answered by 400.")]
    #[test]
    fn a_request_names_its_host_once() {
        for request in ["GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n"] {
            assert_eq!(refused(request), (Status::BadRequest, Persistence::Close));
        }
    }

    #[proves("RFC 9112 6.1", "a transfer coding that is not understood is answered by 501.")]
    #[proves("RFC 9112 6.3", "an ambiguous request is answered by 400 and ends the connection.")]
    #[test]
    fn requests_with_a_body_are_rejected_and_end_the_connection() {
        for (fields, status) in [
            ("Content-Length: 5", Status::ContentTooLarge),
            ("Content-Length: 99999999999999999999999", Status::ContentTooLarge),
            ("Transfer-Encoding: chunked", Status::NotImplemented),
            ("Transfer-Encoding: chunked\r\nContent-Length: 5", Status::BadRequest),
            ("Content-Length: 0\r\nContent-Length: 5", Status::BadRequest),
            ("Content-Length: +0", Status::BadRequest),
            ("Content-Length: -1", Status::BadRequest),
            ("Content-Length: ", Status::BadRequest),
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n");
            assert_eq!(refused(&request), (status, Persistence::Close), "{fields}");
        }
        head("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
        let form = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na=b";
        assert_eq!(refused(form), (Status::MethodNotAllowed, Persistence::Close));
    }

    #[proves(
        "RFC 9110 9.1",
        "a method that is not known is answered by 501, one that is not allowed by 405."
    )]
    #[proves("RFC 9110 10.1.1", "an expectation that is not known may be answered by 417.")]
    #[test]
    fn unsupported_requests_have_distinct_statuses() {
        for (request, status) in [
            ("POST / HTTP/1.1\r\nHost: x\r\n\r\n", Status::MethodNotAllowed),
            ("BREW / HTTP/1.1\r\nHost: x\r\n\r\n", Status::NotImplemented),
            ("get / HTTP/1.1\r\nHost: x\r\n\r\n", Status::NotImplemented),
            ("GET / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", Status::ExpectationFailed),
        ] {
            assert_eq!(refused(request), (status, Persistence::KeepAlive), "{request:?}");
        }
        head("GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\n\r\n");
        assert_eq!(refused("GET / HTTP/2.0\r\n\r\n").0, Status::VersionNotSupported);
        let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(MAX_TARGET_BYTES));
        assert_eq!(refused(&long).0, Status::TargetTooLong);
    }

    #[proves("RFC 9112 3.2.2", "a server accepts a whole URI as a target.")]
    #[test]
    fn a_target_is_a_path_or_a_whole_uri() {
        for (target, path) in [
            ("/a/b?c", "/a/b?c"),
            ("http://x:80/a", "/a"),
            ("HTTP://x/", "/"),
            ("http://x", "/"),
            ("http://x?q", "/"),
        ] {
            assert_eq!(head(&format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n")).target, path);
        }
        for target in ["a", "*", "http:///a", "https://x/a", "x:443"] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
            assert_eq!(refused(&request), (Status::BadRequest, Persistence::Close), "{target}");
        }
    }

    #[test]
    fn an_incomplete_head_has_a_maximum_length() {
        for part in ["", "G", "GET / HTTP/1.1\r\nHost", "GET / HTTP/1.1\r\nHost: x\r\n"] {
            assert_eq!(parse(part.as_bytes()), Parsed::Incomplete);
        }
        let mut long = String::from("GET / HTTP/1.1\r\nHost: x\r\nX: ");
        long.push_str(&"a".repeat(MAX_HEAD_BYTES));
        assert_eq!(refused(&long), (Status::HeadTooLarge, Persistence::Close));
        long.push_str("\r\n\r\n");
        assert_eq!(refused(&long), (Status::HeadTooLarge, Persistence::Close));
        let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "a: b\r\n".repeat(MAX_FIELDS));
        assert_eq!(refused(&many).0, Status::HeadTooLarge);
    }

    #[proves("RFC 9112 5.1", "white space between a field's name and its colon is answered by 400.")]
    #[proves("RFC 9112 5.2", "a folded line is answered by 400.")]
    #[test]
    fn malformed_requests_are_rejected() {
        for request in [
            "\x16\x03\x01\x02\x00\x01",
            "GET / HTTP/1.1\r\nHost : x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
            "GET /a\x01b HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\0\r\n\r\n",
            " GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        ] {
            assert_eq!(refused(request), (Status::BadRequest, Persistence::Close), "{request:?}");
        }
    }
}
