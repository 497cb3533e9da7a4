//! Messages between the machines of an application.

use isola_fs::{Answer, FileRequest, MAX_ENTRIES, MAX_PATH, MAX_READ};
use isola_iobuf::{Chain, IoBuf};
use isola_messenger::Message;

/// Decodes requests, as the home of files does, and answers, as other machines do. They must be within their bounds,
/// and survive encoding and another decoding.
pub fn files(bytes: &[u8]) {
    let chain = || Chain::from(IoBuf::copy_from_slice(bytes));
    if let Some(request) = FileRequest::from_chain(chain()) {
        match &request {
            FileRequest::Read { len, .. } => assert!(*len as usize <= MAX_READ),
            FileRequest::Write { data, .. } => assert!(data.len() <= MAX_READ),
            FileRequest::Status { path } | FileRequest::List { path, .. } => assert!(path.len() <= MAX_PATH),
        }
        let encoded = request.into_chain().to_vec();
        let again = FileRequest::from_chain(Chain::from(IoBuf::from(encoded.clone())));
        assert_eq!(again.expect("an encoded request is a request").into_chain().to_vec(), encoded);
    }
    if let Some(answer) = Answer::from_chain(chain()) {
        match &answer {
            Answer::Data(data) => assert!(data.len() <= MAX_READ),
            Answer::Entries(entries) => assert!(entries.len() <= MAX_ENTRIES),
            _ => {}
        }
        let encoded = answer.into_chain().to_vec();
        let again = Answer::from_chain(Chain::from(IoBuf::from(encoded.clone())));
        assert_eq!(again.expect("an encoded answer is an answer").into_chain().to_vec(), encoded);
    }
}
