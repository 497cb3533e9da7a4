//! The HTTP server `web`. The property tests of that crate run the same targets.

use isola_iobuf::{Chain, IoBuf};
use isola_web::date::{self, UnixSeconds};
use isola_web::head::{self, MAX_HEAD_BYTES, Parsed};
use isola_web::{Prefaces, Session, Site, SiteBuilder, archive};
use std::sync::OnceLock;

/// The contents of each file, long enough for ranges.
const CONTENT: &[u8] = b"0123456789";

/// The maximum length of a response without its target: the file, or the page of a status, and the fields. A
/// redirection repeats the target.
const LONGEST_RESPONSE: usize = 1_000;

fn site() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(|| {
        let mut site = SiteBuilder::new(1);
        for name in ["index.html", "a/index.html", "f"] {
            site.add(name, CONTENT, Some(UnixSeconds(784_111_777))).expect("the names are good");
        }
        site.build()
    })
}

fn run(frames: &[&[u8]]) -> (Vec<u8>, Session) {
    let prefaces = Prefaces::new(UnixSeconds(784_111_777));
    let mut session = Session::new();
    let mut sent = Vec::new();
    for frame in frames {
        session.receive(Chain::from(IoBuf::copy_from_slice(frame)));
        loop {
            let all = session.serve(site(), &prefaces);
            sent.extend(session.take_output(usize::MAX).to_vec());
            if all {
                break;
            }
        }
        let held = session.held_bytes();
        assert!(held <= 4 * MAX_HEAD_BYTES + 3 * frame.len(), "{held} bytes are held");
    }
    (sent, session)
}

/// Delivers the bytes in one frame, and in pieces of the length that the first byte gives. The output must be the same,
/// and consist of responses only.
pub fn requests(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else { return };
    let (whole, one) = run(&[bytes]);
    let frames: Vec<&[u8]> = bytes.chunks(usize::from(*cut).max(1)).collect();
    let (pieces, other) = run(&frames);
    // Bytes that are no request may be detected earlier or later, depending on the pieces; the answers before are the
    // same.
    if one.served() == other.served() && one.has_ended() == other.has_ended() {
        assert_eq!(whole, pieces);
    }
    assert!(whole.is_empty() || whole.starts_with(b"HTTP/1.1 "));
    let most = usize::try_from(one.served()).unwrap_or(usize::MAX).saturating_mul(LONGEST_RESPONSE);
    assert!(whole.len() <= most.saturating_add(2 * bytes.len()));
    if let Parsed::Request(_, len) | Parsed::Refused(_, len) = head::parse(bytes) {
        assert!(len <= bytes.len());
    }
}

/// A request with the lines of the data as fields: conditions, ranges and dates of any kind.
pub fn fields(data: &[u8]) {
    const NAMES: [&str; 8] = [
        "Range",
        "If-Range",
        "If-None-Match",
        "If-Match",
        "If-Modified-Since",
        "If-Unmodified-Since",
        "Connection",
        "Content-Length",
    ];
    let mut request = b"GET /f HTTP/1.1\r\nHost: x\r\n".to_vec();
    for line in data.split(|byte| *byte == b'\n') {
        let Some((name, value)) = line.split_first() else { continue };
        request.extend(NAMES[usize::from(*name) % NAMES.len()].bytes());
        request.extend(b": ");
        request.extend(value.iter().filter(|byte| (b' '..=b'~').contains(byte)));
        request.extend(b"\r\n");
    }
    request.extend(b"\r\n");
    let (sent, _) = run(&[&request]);
    assert!(sent.starts_with(b"HTTP/1.1 "));
    let _ = date::parse(data);
}

/// Reads an archive of any bytes.
pub fn archives(data: &[u8]) {
    // An archive must be `'static`, so a copy of the data is leaked; therefore at most 4 KiB of it are used.
    let data: &'static [u8] = data[..data.len().min(4096)].to_vec().leak();
    let _ = archive::add_all(&mut SiteBuilder::new(1), data);
}
