//! The handler of a connection: passes received data to the session, and sends the session's output in the same event.

use crate::date::UnixSeconds;
use crate::response::Prefaces;
use crate::session::Session;
use crate::site::Site;
use crate::timeout::{Timeout, Waiting};
use alloc::boxed::Box;
use core::cell::RefCell;
use core::mem;
use isola_ebbs::{Ebb, Representative, platform};
use isola_events::now;
use isola_iobuf::Chain;
use isola_net::{ConnectionHandler, FailReason, SendError, TcpConnection, latency};

static PREFACES: Ebb<CorePrefaces> = Ebb::new();

/// The prefaces of a core's responses.
struct CorePrefaces {
    prefaces: RefCell<Prefaces>,
}

impl Representative for CorePrefaces {
    fn create() -> Self {
        Self { prefaces: RefCell::new(Prefaces::new(unix_seconds())) }
    }
}

pub(crate) fn unix_seconds() -> UnixSeconds {
    UnixSeconds(platform().clock().unix_ns(now()) / 1_000_000_000)
}

/// Runs `work` with the prefaces of this second.
fn with_prefaces<T>(work: impl FnOnce(&Prefaces) -> T) -> T {
    let mut prefaces = PREFACES.prefaces.borrow_mut();
    prefaces.refresh(unix_seconds());
    work(&prefaces)
}

/// Creates the handler of a connection, which serves it until either side closes it.
pub fn serve(connection: &TcpConnection, site: &'static Site) -> Client {
    let mut client = Client::new(site, Timeout::begin(connection));
    if client.timeout.is_none() {
        // Without a watch there is no timeout, so the server waits for nothing on this connection.
        with_prefaces(|prefaces| client.session.reject(prefaces));
        // A send error means that the client has gone, so it gets no answer.
        let _ = connection.send_some(&mut client.session.take_output(usize::MAX));
        connection.close();
    }
    client
}

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Requests are served.
    Serving,
    /// The last response is sent. Later input is read and discarded: a reset in reply to it could destroy the last
    /// response before the client reads it (RFC 9112, 9.6).
    Closing,
}

/// Whether the client may send more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Open,
    Closed,
}

/// The next step of a connection that can make no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    Wait(Waiting),
    End,
}

/// The handler of a client's connection. It owns all state of the connection and refers to no state of its core, so it
/// can migrate to another core unchanged.
#[derive(Debug)]
pub struct Client {
    site: &'static Site,
    /// `None` if the core has too many connections.
    timeout: Option<Timeout>,
    session: Session,
    /// Output taken from the session and not yet accepted by the connection.
    output: Chain,
    stage: Stage,
    peer: Peer,
}

impl Client {
    fn new(site: &'static Site, timeout: Option<Timeout>) -> Self {
        let (session, output) = (Session::new(), Chain::new());
        Self { site, timeout, session, output, stage: Stage::Serving, peer: Peer::Open }
    }

    /// Serves until no progress is possible. Pauses reception if the client does not read its responses.
    fn advance(&mut self, connection: &TcpConnection) {
        // A send error means that the connection has failed: end it.
        let next = self.run(connection).unwrap_or(NextStep::End);
        let (NextStep::Wait(waiting), Some(timeout)) = (next, &mut self.timeout) else {
            return self.end(connection);
        };
        timeout.wait_for(waiting);
        if waiting == Waiting::Output { connection.pause() } else { connection.resume() }
    }

    fn end(&mut self, connection: &TcpConnection) {
        connection.close();
        self.forget();
    }

    /// Removes the connection from the watch list.
    fn forget(&mut self) {
        self.timeout.iter_mut().for_each(Timeout::leave);
    }

    fn run(&mut self, connection: &TcpConnection) -> Result<NextStep, SendError> {
        loop {
            // Usually there is no request or one.
            let served = self.session.served();
            let all_answered = !self.session.is_within_request()
                || with_prefaces(|prefaces| self.session.serve(self.site, prefaces));
            latency::answered(self.session.served() - served);
            if !self.send_all(connection)? {
                return Ok(NextStep::Wait(Waiting::Output));
            }
            if !all_answered {
                continue;
            }
            // The client has closed its side, so an incomplete request will never be complete.
            if self.peer == Peer::Closed {
                return Ok(NextStep::End);
            }
            if self.session.has_ended() && self.stage == Stage::Serving {
                connection.shutdown();
                self.stage = Stage::Closing;
            }
            return Ok(NextStep::Wait(match self.stage {
                Stage::Closing => Waiting::End,
                Stage::Serving if self.session.is_within_request() => Waiting::Head,
                Stage::Serving => Waiting::Idle,
            }));
        }
    }

    /// Sends output. Returns whether all of it was accepted, as it is while the client reads.
    fn send_all(&mut self, connection: &TcpConnection) -> Result<bool, SendError> {
        while self.session.has_output() || !self.output.is_empty() {
            // New output follows output that the connection has not accepted yet.
            if self.output.is_empty() {
                self.output = self.session.take_output(usize::MAX);
            }
            if connection.send_some(&mut self.output)? > 0 {
                self.timeout.iter().for_each(Timeout::progress);
            }
            if !self.output.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl ConnectionHandler for Client {
    fn received(&mut self, connection: &TcpConnection, data: Chain) {
        self.session.receive(data);
        self.advance(connection);
    }

    fn send_space(&mut self, connection: &TcpConnection) {
        self.advance(connection);
    }

    fn peer_closed(&mut self, connection: &TcpConnection) {
        self.peer = Peer::Closed;
        self.advance(connection);
    }

    /// Runs when the core has found the connection's timeout expired.
    fn called_again(&mut self, connection: &TcpConnection) {
        // Progress may have postponed the timeout since.
        let Some(timeout) = self.timeout.as_ref().filter(|timeout| timeout.has_expired()) else { return };
        match timeout.waiting() {
            Waiting::Idle | Waiting::Head => {
                with_prefaces(|prefaces| self.session.time_out(prefaces));
                self.advance(connection);
            }
            Waiting::Output | Waiting::End => self.end(connection),
        }
    }

    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        self.timeout.as_mut()?.leave();
        let empty = Self::new(self.site, None);
        Some(Box::new(mem::replace(self, empty)))
    }

    fn arrived(&mut self, connection: &TcpConnection) {
        self.timeout.iter_mut().for_each(|timeout| timeout.enter(connection));
    }

    fn ended(&mut self, _: Option<FailReason>) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::SiteBuilder;
    use crate::timeout::MAX_CONNECTIONS;
    use alloc::vec::Vec;
    use core::future::pending;
    use isola_hosted::Loss;
    use isola_net::listen_with;
    use isola_test_cells::{dial, run_server_and_client};

    #[test]
    fn a_connection_above_the_limit_is_rejected_and_closed() {
        let server = || async {
            let site: &'static Site = Box::leak(Box::new(SiteBuilder::new(7).build()));
            let listening = listen_with(80, 16, move |connection| {
                // Occupies all places of the core's watch list.
                let all: Vec<_> = (0..MAX_CONNECTIONS).map_while(|_| Timeout::begin(connection)).collect();
                assert_eq!(all.len(), MAX_CONNECTIONS);
                serve(connection, site)
            });
            pending::<()>().await;
            drop(listening);
        };
        run_server_and_client(1, Loss::Never, server, || async {
            let mut stream = dial(80).await;
            let mut all = Chain::new();
            // This side neither sends nor closes anything.
            while let Some(data) = stream.read().await.unwrap() {
                all.append(data);
            }
            assert!(all.to_vec().starts_with(b"HTTP/1.1 503 "));
        });
    }
}
