//! Connections to a site on a volume: one task each, whose bodies flow from the volume to the socket.
//!
//! While the task waits for a request, one that needs no waiting is answered in the event in which it arrived: that of a
//! short file that is open and in the cache, on the core of the volume.
//!
//! **Memory.** A client that does not read holds views of cached blocks: at most the window of its flow and its send
//! queue. All clients of a core together hold at most a budget, a part of the cell's memory: at half of it, further
//! responses have small windows, and beyond it the status is 503.

use crate::head::{Head, Parsed, Persistence};
use crate::requests::Requests;
use crate::response::{Prefaces, Status};
use crate::server::unix_seconds;
use crate::session::{page, refused};
use crate::volume_site::{Body, OpenEntry, Request, Response, VolumeSite};
use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use core::time::Duration;
use isola_ebbs::{Ebb, Representative, current_core};
use isola_events::timer::Sleep;
use isola_events::{Instant, now, sleep_until, timeout};
use isola_flows::{Flowed, flow};
use isola_iobuf::Chain;
use isola_net::{EarlyRead, StreamError, TcpConnection, TcpStream, latency};
use isola_volumes::{FileError, FileSource, SharedFile, SharedVolume, Volume};

/// The maximum number of connections per core. Further connections get the status 503.
const MAX_CONNECTIONS: usize = 8192;

/// The window of a body's flow, and the limit of its connection's send queue, in bytes.
const WINDOW: usize = 256 << 10;

/// The same for connections that come when half of the budget is used.
const SMALL_WINDOW: usize = 16 << 10;

/// The time without a request, or to the rest of its head.
const IDLE: Duration = Duration::from_secs(75);
const HEAD: Duration = Duration::from_secs(15);
/// The time without progress of a response.
const OUTPUT: Duration = Duration::from_secs(60);
/// The time for the client to close its side, after the server.
const END: Duration = Duration::from_secs(5);
/// The interval at which an idle connection's unacknowledged bytes are counted again.
const RECOUNT: Duration = Duration::from_secs(1);

static CORE: Ebb<CoreConnections> = Ebb::new();

/// The connections of a core, and the site if its volume is here.
#[derive(Default)]
struct CoreConnections {
    count: Cell<usize>,
    held_bytes: Cell<usize>,
    site: RefCell<Option<Rc<VolumeSite>>>,
    /// Those of the latest second with a response.
    prefaces: RefCell<Option<Rc<Prefaces>>>,
}

impl Representative for CoreConnections {
    fn create() -> Self {
        Self::default()
    }
}

/// Returns the prefaces of this second.
fn prefaces() -> Rc<Prefaces> {
    let (mut prefaces, now) = (CORE.prefaces.borrow_mut(), unix_seconds());
    match &*prefaces {
        Some(current) if current.at() == now => current.clone(),
        _ => prefaces.insert(Rc::new(Prefaces::new(now))).clone(),
    }
}

/// A site on a volume, for all cores.
#[derive(Clone, Copy, Debug)]
pub struct Directory {
    volume: SharedVolume,
    /// The most bytes that the clients of a core hold.
    budget: usize,
}

impl Directory {
    /// Serves a directory of a volume, which is mounted on the calling core. A core has one such site. The clients of a
    /// core hold at most `budget` bytes.
    ///
    /// # Errors
    /// As [`VolumeSite::new`].
    pub async fn new(volume: &Volume, root: &str, budget: usize, seed: u64) -> Result<Self, FileError> {
        let site = VolumeSite::new(volume.clone(), root, seed).await?;
        CORE.site.replace(Some(Rc::new(site)));
        Ok(Self { volume: volume.share(), budget })
    }

    /// Closes the site, on the core of the volume: further requests get the status 503. Responses under way keep their
    /// files open.
    pub fn close(self) {
        let site = CORE.site.take();
        drop(site);
    }

    /// Answers a request, on the core of the volume.
    async fn answer(self, request: Request) -> Result<AnyResponse, FileError> {
        if self.volume.core() == current_core() {
            return Ok(AnyResponse::Local(answer(&request).await?));
        }
        let there = move |_| async move {
            let Response { head, body } = answer(&request).await?;
            Ok(Response { head, body: body.map(Body::share) })
        };
        self.volume.with(there).await.map(AnyResponse::Shared)
    }
}

async fn answer(request: &Request) -> Result<Response<Rc<OpenEntry>>, FileError> {
    let site = CORE.site.borrow().clone().ok_or(FileError::Unmounted)?;
    Ok(site.answer(request, &prefaces()).await)
}

/// A response from this core, or from that of the volume.
enum AnyResponse {
    Local(Response<Rc<OpenEntry>>),
    Shared(Response<SharedFile>),
}

/// The bytes that a connection may hold, counted against the core's budget.
#[derive(Debug)]
struct Holding {
    bytes: usize,
    budget: usize,
}

impl Holding {
    /// Changes the number of bytes. Returns whether the budget permits it.
    fn set(&mut self, bytes: usize) -> bool {
        let held = CORE.held_bytes.get() - self.bytes + bytes;
        if bytes > self.bytes && held > self.budget {
            return false;
        }
        CORE.held_bytes.set(held);
        self.bytes = bytes;
        true
    }

    /// Returns the window for a further response.
    fn window(&self) -> usize {
        if CORE.held_bytes.get() > self.budget / 2 { SMALL_WINDOW } else { WINDOW }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        CORE.held_bytes.set(CORE.held_bytes.get() - self.bytes);
        CORE.count.set(CORE.count.get() - 1);
    }
}

/// The end of a connection.
enum Ended {
    /// The client has gone, or gets no further answer.
    AtOnce,
    /// The last response is sent: later input is read and discarded, as a reset in reply to it could destroy the
    /// response before the client reads it (RFC 9112, 9.6).
    AfterResponse,
}

/// Serves a connection until either side closes it.
pub async fn serve(mut stream: TcpStream, directory: Directory) {
    CORE.count.set(CORE.count.get() + 1);
    let holding = Holding { bytes: 0, budget: directory.budget };
    let shared = Rc::new(Shared {
        requests: RefCell::default(),
        holding: RefCell::new(holding),
        limit: Cell::new(WINDOW),
        news: Cell::new(false),
        is_served: Cell::new(false),
    });
    if directory.volume.core() == current_core() {
        let early = shared.clone();
        stream.set_early_reader(move |connection, data| early.receive(connection, data));
    }
    let mut client =
        Client { stream: &mut stream, directory, shared, input_deadline: MovingDeadline::default() };
    let ended = client.run().await;
    stream.remove_early_reader();
    if let Ended::AfterResponse = ended {
        stream.shutdown();
        let _ = timeout(END, async { while let Ok(Some(_)) = stream.read().await {} }).await;
    }
}

/// Wakes the task at a deadline that moves with each request. It sets no alarm while an earlier one is set, which then
/// finds out that the deadline has moved: a request costs no alarm.
#[derive(Default)]
struct MovingDeadline {
    alarm: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl MovingDeadline {
    /// Returns whether the deadline has passed; otherwise the task is polled by then.
    fn has_passed(&mut self, deadline: Instant, context: &mut Context<'_>) -> bool {
        let now = now();
        if now >= deadline {
            return true;
        }
        if !self.alarm.as_ref().is_some_and(|(at, _)| *at > now && *at <= deadline) {
            let mut sleep = Box::pin(sleep_until(deadline));
            if sleep.as_mut().poll(context).is_ready() {
                return true;
            }
            self.alarm = Some((deadline, sleep));
        }
        false
    }
}

/// A client's connection.
struct Client<'a> {
    stream: &'a mut TcpStream,
    directory: Directory,
    shared: Rc<Shared>,
    input_deadline: MovingDeadline,
}

/// The state of a connection that its task shares with its early reader.
struct Shared {
    requests: RefCell<Requests>,
    holding: RefCell<Holding>,
    /// The limit of the send queue.
    limit: Cell<usize>,
    /// Whether the early reader has left something to the waiting task: a request, or bytes to count again.
    news: Cell<bool>,
    /// Whether the early reader has answered a request during the current wait.
    is_served: Cell<bool>,
}

impl Shared {
    /// Answers requests that need no waiting, while the task waits for one.
    fn receive(&self, connection: &TcpConnection, data: Chain) -> EarlyRead {
        let mut requests = self.requests.borrow_mut();
        requests.receive(data);
        let (mut holding, site) = (self.holding.borrow_mut(), CORE.site.borrow());
        let counts_nothing = holding.bytes == 0;
        let mut answer = |head: &Head<'_>| {
            if head.persistence == Persistence::Close {
                return false;
            }
            let Some(mut response) = site.as_ref().and_then(|site| site.answer_at_once(head, &prefaces()))
            else {
                return false;
            };
            let unacknowledged = self.limit.get().saturating_sub(connection.space());
            holding.set(unacknowledged + response.len()) && connection.send(&mut response).is_ok()
        };
        while requests.has_begun() && requests.answer_whole(&mut answer) {
            latency::answered(1);
            self.is_served.set(true);
        }
        // The task counts bytes again each second while there are some.
        let news = requests.has_begun() || (counts_nothing && holding.bytes > 0);
        self.news.set(news);
        if news { EarlyRead::WakeReader } else { EarlyRead::Complete }
    }
}

/// The end of a wait for data.
enum Input {
    Read(Result<Option<Chain>, StreamError>),
    /// The early reader has left something.
    News,
    /// Nothing arrived in time.
    None,
}

/// A request, or the response to one that was rejected.
enum Received {
    Request(Request),
    Refused(Chain, Persistence),
}

impl Client<'_> {
    async fn run(&mut self) -> Ended {
        self.stream.set_send_limit(self.shared.limit.get());
        if CORE.count.get() > MAX_CONNECTIONS {
            return self.refuse(Status::ServiceUnavailable).await;
        }
        loop {
            let received = self.shared.requests.borrow_mut().next(|parsed| match parsed {
                Parsed::Request(head, _) => Some(Received::Request(Request::new(&head))),
                Parsed::Refused(refusal, _) => {
                    let response = refused(&prefaces(), &refusal);
                    Some(Received::Refused(response.into(), refusal.persistence))
                }
                Parsed::Incomplete => None,
            });
            let served = match received.flatten() {
                Some(Received::Request(request)) => self.serve(request).await,
                Some(Received::Refused(response, persistence)) => {
                    latency::answered(1);
                    self.send(response).await.map(|()| persistence)
                }
                None => match self.receive().await {
                    Ok(()) => continue,
                    Err(ended) => return ended,
                },
            };
            match served {
                Ok(Persistence::Close) => return Ended::AfterResponse,
                Ok(_) => {}
                Err(ended) => return ended,
            }
        }
    }

    /// Waits for data.
    async fn receive(&mut self) -> Result<(), Ended> {
        let has_begun = self.shared.requests.borrow().has_begun();
        let mut left = if has_begun { HEAD } else { IDLE };
        loop {
            self.count_unacknowledged();
            let step = if self.shared.holding.borrow().bytes > 0 { left.min(RECOUNT) } else { left };
            match self.read_for(step).await {
                Input::Read(Ok(Some(data))) => {
                    self.shared.requests.borrow_mut().receive(data);
                    return Ok(());
                }
                Input::Read(Ok(None) | Err(_)) => return Err(Ended::AtOnce),
                Input::News => return Ok(()),
                // The client's time begins anew with each request.
                Input::None if self.shared.is_served.take() => return Ok(()),
                Input::None => left -= step,
            }
            if left.is_zero() {
                return Err(if has_begun {
                    self.refuse(Status::RequestTimeout).await
                } else {
                    Ended::AtOnce
                });
            }
        }
    }

    /// Reads data, or waits for what the early reader leaves, for `limit`.
    async fn read_for(&mut self, limit: Duration) -> Input {
        let deadline = now() + limit;
        let Self { stream, input_deadline, shared, .. } = self;
        poll_fn(|context| {
            if shared.news.take() {
                return Poll::Ready(Input::News);
            }
            match stream.poll_read(context) {
                Poll::Ready(result) => Poll::Ready(Input::Read(result)),
                Poll::Pending if input_deadline.has_passed(deadline, context) => Poll::Ready(Input::None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Counts the bytes in the send queue, which the client has not acknowledged.
    fn count_unacknowledged(&mut self) {
        let unacknowledged = self.unacknowledged();
        let mut holding = self.shared.holding.borrow_mut();
        if unacknowledged < holding.bytes {
            holding.set(unacknowledged);
        }
    }

    fn unacknowledged(&self) -> usize {
        self.shared.limit.get().saturating_sub(self.stream.send_space())
    }

    async fn serve(&mut self, request: Request) -> Result<Persistence, Ended> {
        let persistence = request.persistence();
        let Ok(response) = self.directory.answer(request).await else {
            return Err(self.refuse(Status::ServiceUnavailable).await);
        };
        latency::answered(1);
        match response {
            AnyResponse::Local(Response { head, body }) => {
                let body = body.map(|body| (body.source(), body.len()));
                self.respond(head, body).await?;
            }
            AnyResponse::Shared(Response { head, body }) => {
                let body = body.map(|body| (body.source(), body.len()));
                self.respond(head, body).await?;
            }
        }
        Ok(persistence)
    }

    async fn respond(&mut self, head: Chain, body: Option<(FileSource, u64)>) -> Result<(), Ended> {
        let window = self.shared.holding.borrow().window();
        let body_len = body.as_ref().map_or(0, |(_, len)| usize::try_from(*len).unwrap_or(usize::MAX));
        let len = head.len().saturating_add(body_len);
        let held = self.unacknowledged() + len.min(2 * window);
        if !self.shared.holding.borrow_mut().set(held) {
            return Err(self.refuse(Status::ServiceUnavailable).await);
        }
        if window != self.shared.limit.get() {
            self.shared.limit.set(window);
            self.stream.set_send_limit(window);
        }
        self.send(head).await?;
        let Some((source, len)) = body else { return Ok(()) };
        let mut flowing = pin!(flow(source, &mut *self.stream).window(window).length(len));
        let mut written = 0;
        loop {
            match timeout(OUTPUT, flowing.as_mut()).await {
                Ok(Flowed { result: Ok(()), .. }) => return Ok(()),
                // The head has promised more: the end of the connection tells the client that the file is damaged, has
                // changed, or cannot be read.
                Ok(_) => return Err(Ended::AtOnce),
                Err(_) if flowing.statistics().writes == written => return Err(Ended::AtOnce),
                Err(_) => written = flowing.statistics().writes,
            }
        }
    }

    /// Sends data, usually at once.
    async fn send(&mut self, mut data: Chain) -> Result<(), Ended> {
        let at_once = poll_fn(|context| Poll::Ready(self.stream.poll_write(context, &mut data))).await;
        match at_once {
            Poll::Ready(Ok(())) => Ok(()),
            Poll::Ready(Err(_)) => Err(Ended::AtOnce),
            Poll::Pending => {
                let rest = timeout(OUTPUT, self.stream.write(data)).await;
                rest.ok().and_then(Result::<(), StreamError>::ok).ok_or(Ended::AtOnce)
            }
        }
    }

    /// Sends a response that ends the connection.
    async fn refuse(&mut self, status: Status) -> Ended {
        self.stream.remove_early_reader();
        let method = crate::head::Method::Get;
        let text = page(&prefaces(), status, Persistence::Close, method, "");
        match self.send(text.into()).await {
            Ok(()) => Ended::AfterResponse,
            Err(ended) => ended,
        }
    }
}
