//! A connection with its sockets.

use crate::date::UnixSeconds;
use crate::response::Prefaces;
use crate::session::Session;
use crate::site::Site;
use crate::watch::{Waiting, Watched};
use core::cell::RefCell;
use core::future::poll_fn;
use core::task::{Context, Poll};
use isola_ebbs::{Ebb, Representative, platform};
use isola_events::now;
use isola_iobuf::Chain;
use isola_net::{StreamError, TcpStream};

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

fn unix_seconds() -> UnixSeconds {
    UnixSeconds(platform().clock().unix_ns(now()) / 1_000_000_000)
}

/// Runs `work` with the prefaces of this second.
fn with_prefaces<T>(work: impl FnOnce(&Prefaces) -> T) -> T {
    let mut prefaces = PREFACES.prefaces.borrow_mut();
    prefaces.refresh(unix_seconds());
    work(&prefaces)
}

/// Serves a connection until either side has enough.
pub async fn serve(stream: TcpStream, site: &'static Site) {
    let mut connection = Connection {
        stream,
        site,
        session: Session::new(),
        output: Chain::new(),
        watched: Watched::begin(),
        stage: Stage::Talking,
    };
    if connection.watched.is_none() {
        with_prefaces(|prefaces| connection.session.turn_away(prefaces));
    }
    // Who is gone needs no answer, and who is too slow gets none.
    let _ = poll_fn(|context| connection.poll(context)).await;
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Requests and responses.
    Talking,
    /// All is said. What still comes is read and forgotten: a reset for it would take the last response from the client
    /// before that has read it (RFC 9112, 9.6).
    Parting,
}

struct Connection {
    stream: TcpStream,
    site: &'static Site,
    session: Session,
    /// What is on its way into the stream.
    output: Chain,
    watched: Option<Watched>,
    stage: Stage,
}

impl Connection {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        if let Some(watched) = &self.watched {
            watched.watch.wakes(context.waker());
            match watched.watch.take_expired() {
                None => {}
                Some(Waiting::Idle | Waiting::Head) => {
                    with_prefaces(|prefaces| self.session.time_out(prefaces));
                }
                Some(Waiting::Output | Waiting::End) => return Poll::Ready(Err(StreamError::Closed)),
            }
        }
        loop {
            // Most of the time there is nothing, or one request.
            let all_answered = !self.session.is_within_request()
                || with_prefaces(|prefaces| self.session.serve(self.site, prefaces));
            if self.poll_output(context)?.is_pending() {
                return self.wait_for(Waiting::Output);
            }
            if !all_answered {
                continue;
            }
            if self.session.has_ended() && self.stage == Stage::Talking {
                self.stream.shutdown();
                self.stage = Stage::Parting;
            }
            let Poll::Ready(data) = self.stream.poll_read(context)? else {
                return self.wait_for(match self.stage {
                    Stage::Parting => Waiting::End,
                    Stage::Talking if self.session.is_within_request() => Waiting::Head,
                    Stage::Talking => Waiting::Idle,
                });
            };
            match data {
                Some(data) => self.session.receive(data),
                // Requests that are not whole will not be.
                None => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Hands all output over. Pending where the client does not read.
    fn poll_output(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, StreamError> {
        loop {
            if self.output.is_empty() {
                self.output = self.session.take_output(usize::MAX);
            }
            if self.output.is_empty() {
                return Ok(Poll::Ready(()));
            }
            let len = self.output.len();
            let done = self.stream.poll_write(context, &mut self.output);
            if self.output.len() < len
                && let Some(watched) = &self.watched
            {
                watched.watch.progress();
            }
            match done {
                Poll::Ready(result) => result?,
                Poll::Pending => return Ok(Poll::Pending),
            }
        }
    }

    /// Waits, where the connection is watched. Who is not is not waited for, whatever for: nobody would see that it takes too
    /// long.
    fn wait_for(&self, waiting: Waiting) -> Poll<Result<(), StreamError>> {
        match &self.watched {
            Some(watched) => {
                watched.watch.wait_for(waiting);
                Poll::Pending
            }
            None => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::SiteBuilder;
    use crate::watch::MAX_CONNECTIONS;
    use alloc::boxed::Box;
    use alloc::vec::Vec;
    use core::future::pending;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use core::time::Duration;
    use isola_events::sleep;
    use isola_gateway::test_cells::{dial, talk};
    use isola_hosted::Loss;
    use isola_net::listen;

    #[test]
    fn who_comes_on_top_is_turned_away_and_not_waited_for() {
        static ENDED: AtomicUsize = AtomicUsize::new(0);
        let server = || async {
            let all: Vec<_> = (0..MAX_CONNECTIONS).map_while(|_| Watched::begin()).collect();
            assert_eq!(all.len(), MAX_CONNECTIONS);
            let site: &'static Site = Box::leak(Box::new(SiteBuilder::new(7).build()));
            let listening = listen(80, 16, move |stream| async move {
                serve(stream, site).await;
                ENDED.fetch_add(1, Ordering::Relaxed);
            });
            pending::<()>().await;
            drop((listening, all));
        };
        talk(1, Loss::Never, server, || async {
            let mut stream = dial(80).await;
            let mut all = Chain::new();
            while let Some(data) = stream.read().await.unwrap() {
                all.append(data);
            }
            assert!(all.to_vec().starts_with(b"HTTP/1.1 503 "));
            // This side neither says nor ends anything.
            while ENDED.load(Ordering::Relaxed) == 0 {
                sleep(Duration::from_millis(2)).await;
            }
            drop(stream);
        });
    }
}
