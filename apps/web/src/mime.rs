//! Media types by file name extension (RFC 9110, 8.3).

/// Extensions without the dot, and their media types as registered with IANA.
const TYPES: &[(&str, &str)] = &[
    ("avif", "image/avif"),
    ("bmp", "image/bmp"),
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/vnd.microsoft.icon"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("map", "application/json"),
    ("md", "text/markdown; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("ogg", "audio/ogg"),
    ("otf", "font/otf"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("ttf", "font/ttf"),
    ("txt", "text/plain; charset=utf-8"),
    ("wasm", "application/wasm"),
    ("wav", "audio/wav"),
    ("webm", "video/webm"),
    ("webmanifest", "application/manifest+json"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xml", "text/xml"),
    ("zip", "application/zip"),
];

/// The media type of a file with an unknown extension.
const ANYTHING: &str = "application/octet-stream";

/// Returns the media type of the file of that name.
pub(crate) fn type_of(name: &str) -> &'static str {
    let base = name.rsplit('/').next().unwrap_or_default();
    let end = base.rsplit_once('.').map_or("", |(_, end)| end);
    TYPES.iter().find(|(known, _)| known.eq_ignore_ascii_case(end)).map_or(ANYTHING, |(_, media)| media)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_selects_the_media_type_in_any_case() {
        assert_eq!(type_of("/a/b.HTML"), "text/html; charset=utf-8");
        assert_eq!(type_of("/a.tar.gz"), "application/gzip");
        for name in ["/html", "/a.png/b", "/", "/.unknown"] {
            assert_eq!(type_of(name), ANYTHING, "{name}");
        }
        assert!(TYPES.is_sorted());
    }
}
