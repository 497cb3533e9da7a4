//! A TCP echo server (RFC 862): what comes in goes back, in the very buffers that it came in.
//!
//! Here is what is done with a connection. Arguments and listening are the image's.
#![no_std]
#![forbid(unsafe_code)]

use isola_net::TcpStream;

/// Sends back what comes, until the peer has nothing more to send.
pub async fn serve(mut stream: TcpStream) {
    while let Ok(Some(data)) = stream.read().await {
        // A peer that is gone needs no answer.
        if stream.write(data).await.is_err() {
            return;
        }
    }
    stream.shutdown();
}
