//! Connections to a host name (a simple form of RFC 8305). The addresses are tried in turn with alternating families,
//! each a quarter of a second after the previous one, or when an attempt fails. The first established connection wins;
//! the other attempts are cancelled.

use crate::error::ResolveError;
use crate::resolver::resolve;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::future::{Future, poll_fn};
use core::net::{IpAddr, SocketAddr};
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use isola_events::sleep;
use isola_events::timer::Sleep;
use isola_net::{StreamError, TcpStream};

/// The delay between the starts of two attempts (RFC 8305, 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The maximum number of addresses to try.
const MAX_ATTEMPTS: usize = 8;

/// The reason why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The name has no addresses.
    Resolve(ResolveError),
    /// All addresses failed; the error of the last one.
    Stream(StreamError),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve(error) => error.fmt(f),
            Self::Stream(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ConnectError {}

/// Connects to a port of a host, given by name or address.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect(host: &str, port: u16) -> Result<TcpStream, ConnectError> {
    let addresses = resolve(host).await.map_err(ConnectError::Resolve)?;
    connect_to_any(&interleaved(&addresses), port).await.map_err(ConnectError::Stream)
}

/// Connects to the address that answers first, among the first eight of `addresses`.
///
/// # Errors
/// The error of the last attempt.
pub async fn connect_to_any(addresses: &[IpAddr], port: u16) -> Result<TcpStream, StreamError> {
    let rest: Vec<_> = addresses.iter().take(MAX_ATTEMPTS).map(|address| (*address, port).into()).collect();
    let mut race = Race { rest: rest.into_iter(), running: Vec::new(), delay: None };
    poll_fn(|context| race.poll(context)).await
}

/// Returns the addresses with alternating families, IPv6 first (RFC 8305, 4).
fn interleaved(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let of = |is_v6: bool| addresses.iter().filter(move |address| address.is_ipv6() == is_v6);
    let (mut six, mut four) = (of(true), of(false));
    let mut all = Vec::with_capacity(addresses.len());
    while all.len() < addresses.len() {
        all.extend(six.next());
        all.extend(four.next());
    }
    all
}

type Attempt = Pin<Box<dyn Future<Output = Result<TcpStream, StreamError>>>>;

/// Concurrent attempts.
struct Race {
    rest: alloc::vec::IntoIter<SocketAddr>,
    running: Vec<Attempt>,
    /// The delay until the next attempt.
    delay: Option<Pin<Box<Sleep>>>,
}

impl Race {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<TcpStream, StreamError>> {
        let mut last = StreamError::Closed;
        loop {
            let mut has_failed = false;
            let mut number = 0;
            while number < self.running.len() {
                match self.running[number].as_mut().poll(context) {
                    Poll::Ready(Ok(stream)) => return Poll::Ready(Ok(stream)),
                    Poll::Ready(Err(error)) => {
                        last = error;
                        has_failed = true;
                        drop(self.running.remove(number));
                    }
                    Poll::Pending => number += 1,
                }
            }
            let is_over = self.delay.as_mut().is_none_or(|delay| delay.as_mut().poll(context).is_ready());
            if !(is_over || has_failed) {
                return Poll::Pending;
            }
            let Some(address) = self.rest.next() else {
                self.delay = None;
                return if self.running.is_empty() { Poll::Ready(Err(last)) } else { Poll::Pending };
            };
            self.running.push(Box::pin(isola_net::connect(address)));
            self.delay = Some(Box::pin(sleep(ATTEMPT_DELAY)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    #[proves("RFC 8305 4", "address families alternate, beginning with IPv6.")]
    #[test]
    fn address_families_alternate() {
        let all: Vec<IpAddr> = ["1.0.0.1", "::1", "1.0.0.2", "1.0.0.3", "::2"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let order: Vec<_> = interleaved(&all).iter().map(alloc::string::ToString::to_string).collect();
        assert_eq!(order, ["::1", "1.0.0.1", "::2", "1.0.0.2", "1.0.0.3"]);
        assert!(interleaved(&[]).is_empty());
    }
}
