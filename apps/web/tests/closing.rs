//! The end of a connection, between two cells of this process.

mod common;

use common::{responses, site};
use isola_hosted::Loss;
use isola_iobuf::{Chain, IoBuf};
use isola_net::listen_with;
use isola_proves::proves;
use isola_test_cells::{dial, run_server_and_client};
use std::future::pending;

#[proves(
    "RFC 9112 9.6",
    "a server reads on after its last response, so that no reset destroys the response."
)]
#[test]
fn a_client_with_an_unwanted_body_gets_the_response() {
    let server = || async {
        let _listening = listen_with(80, 16, |connection| isola_web::serve(connection, site())).unwrap();
        pending::<()>().await;
    };
    run_server_and_client(1, Loss::Never, server, || async {
        for _ in 0..8 {
            let mut stream = dial(80).await;
            let head = b"PUT /f HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n";
            stream.write(IoBuf::from_static(head).into()).await.unwrap();
            for _ in 0..20 {
                stream.write(IoBuf::from(vec![b'x'; 100_000]).into()).await.unwrap();
            }
            let mut all = Chain::new();
            while let Some(data) = stream.read().await.unwrap() {
                all.append(data);
            }
            assert_eq!(responses(&all.to_vec(), &["PUT"])[0].status, 405);
        }
    });
}
