//! The heads of responses (RFC 9112, 4 and 5).

use alloc::format;
use alloc::string::String;

/// The body of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A file of this length in bytes.
    File(u64),
    /// A text of this length in bytes.
    Text(usize),
}

/// Returns the head of a response with a status such as "200 OK". The connection closes after the response.
pub fn head(status: &str, body: Body) -> String {
    let (kind, len) = match body {
        Body::File(len) => ("application/octet-stream", len),
        Body::Text(len) => ("text/plain; charset=utf-8", len as u64),
    };
    format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n")
}
