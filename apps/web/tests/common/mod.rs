//! A site for tests, and exchanges with a session of it.
#![allow(dead_code)] // Each test uses a part of it.

use isola_iobuf::{Chain, IoBuf};
use isola_web::date::UnixSeconds;
use isola_web::{Prefaces, Session, Site, SiteBuilder};
use std::sync::OnceLock;

/// The time: Sun, 06 Nov 1994 08:49:37 GMT.
pub const NOW: UnixSeconds = UnixSeconds(784_111_777);

/// The time of the files' last change: Fri, 04 Nov 1994 08:49:37 GMT.
pub const CHANGED: UnixSeconds = UnixSeconds(NOW.0 - 2 * 86_400);

/// [`CHANGED`] in the form of a request.
pub const CHANGED_TEXT: &str = "Fri, 04 Nov 1994 08:49:37 GMT";

/// The length of the large file.
pub const LARGE: usize = 300_001;

/// Returns the content of the large file.
pub fn large() -> Vec<u8> {
    (0..LARGE).map(|n| (n * 7 % 251) as u8).collect()
}

/// Returns the site: an index, one in a directory, a text of 26 letters, an empty file, a large one, and one with a
/// space in its name.
pub fn site() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(|| {
        let mut site = SiteBuilder::new(7);
        let mut add = |name: &str, content: &'static [u8]| site.add(name, content, Some(CHANGED)).unwrap();
        add("index.html", b"<h1>index</h1>");
        add("sub/index.html", b"<h1>sub</h1>");
        add("letters.txt", b"abcdefghijklmnopqrstuvwxyz");
        add("empty", b"");
        add("a name", b"text");
        add("large.bin", large().leak());
        site.build()
    })
}

/// A parsed response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the value of a field, or `None`. Fails if the field occurs twice.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} is there twice");
        value
    }
}

/// Parses the responses to requests with these methods. One that was cut short has the bytes of its body that arrived.
pub fn responses(mut bytes: &[u8], methods: &[&str]) -> Vec<Response> {
    let mut all = Vec::new();
    for method in methods {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a response has a head") + 4;
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().strip_prefix("HTTP/1.1 ").unwrap();
        let status = status[..3].parse().unwrap();
        let fields: Vec<_> =
            lines.map(|line| line.split_once(": ").unwrap()).map(|(n, v)| (n.into(), v.into())).collect();
        let mut response = Response { status, fields, body: Vec::new() };
        let len: usize = response.field("Content-Length").map_or(0, |len| len.parse().unwrap());
        let len = if *method == "HEAD" || status == 304 { 0 } else { len };
        let (body, rest) = bytes[end..].split_at(len.min(bytes.len() - end));
        response.body = body.to_vec();
        bytes = rest;
        all.push(response);
    }
    assert!(bytes.is_empty(), "there is more: {:?}", String::from_utf8_lossy(bytes));
    all
}

/// Passes frames to a session; returns its output.
pub fn exchange(session: &mut Session, frames: &[&[u8]]) -> Vec<u8> {
    let prefaces = Prefaces::new(NOW);
    let mut out = Chain::new();
    for frame in frames {
        session.receive(Chain::from(IoBuf::copy_from_slice(frame)));
        while !session.serve(site(), &prefaces) {
            out.append(session.take_output(usize::MAX));
        }
        out.append(session.take_output(usize::MAX));
    }
    out.to_vec()
}

/// Returns the response to a GET with these fields besides Host.
pub fn get(path: &str, fields: &str) -> Response {
    request("GET", path, fields)
}

/// Returns the response to a request with these fields besides Host.
pub fn request(method: &str, path: &str, fields: &str) -> Response {
    let text = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
    let mut session = Session::new();
    responses(&exchange(&mut session, &[text.as_bytes()]), &[method]).remove(0)
}
