//! The two ends of a flow.

use core::convert::Infallible;
use core::task::{Context, Poll};
use isola_iobuf::Chain;

/// The end of a flow that returns bytes.
pub trait Source {
    /// The reason for which it fails.
    type Error;

    /// Appends its next bytes to `into`, at least one and at most `most`, and returns their number; 0 at its end. Wakes
    /// the context's task when it has bytes or ends.
    ///
    /// A source may prepare bytes for later calls. These count against `most` as well, so that they stay within the
    /// flow's window.
    ///
    /// # Errors
    /// The source's own. It is not called again after one.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        most: usize,
        into: &mut Chain,
    ) -> Poll<Result<usize, Self::Error>>;
}

/// The end of a flow that takes bytes.
pub trait Sink {
    /// The reason for which it fails.
    type Error;

    /// Removes bytes from the front of `from`, at least one and as many as it has room for, and returns their number.
    /// Wakes the context's task when it has room. `from` is not empty.
    ///
    /// # Errors
    /// The sink's own. It is not called again after one.
    fn poll_write(&mut self, context: &mut Context<'_>, from: &mut Chain)
    -> Poll<Result<usize, Self::Error>>;

    /// Completes when the sink has done all that it does with the bytes that it has taken: a file, when they are written.
    ///
    /// # Errors
    /// The sink's own.
    fn poll_finish(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    /// Ends the sink's stream, after all bytes: a TCP stream's sending direction.
    fn end(&mut self) {}
}

impl<S: Source + ?Sized> Source for &mut S {
    type Error = S::Error;

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        most: usize,
        into: &mut Chain,
    ) -> Poll<Result<usize, S::Error>> {
        (**self).poll_read(context, most, into)
    }
}

impl<K: Sink + ?Sized> Sink for &mut K {
    type Error = K::Error;

    fn poll_write(&mut self, context: &mut Context<'_>, from: &mut Chain) -> Poll<Result<usize, K::Error>> {
        (**self).poll_write(context, from)
    }

    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<(), K::Error>> {
        (**self).poll_finish(context)
    }

    fn end(&mut self) {
        (**self).end();
    }
}

/// Bytes in memory: the flow removes them.
impl Source for Chain {
    type Error = Infallible;

    fn poll_read(
        &mut self,
        _context: &mut Context<'_>,
        most: usize,
        into: &mut Chain,
    ) -> Poll<Result<usize, Infallible>> {
        let count = self.len().min(most);
        into.append(self.split_to(count).unwrap_or_default());
        Poll::Ready(Ok(count))
    }
}

/// Memory without a bound: the flow appends to it.
impl Sink for Chain {
    type Error = Infallible;

    fn poll_write(
        &mut self,
        _context: &mut Context<'_>,
        from: &mut Chain,
    ) -> Poll<Result<usize, Infallible>> {
        let count = from.len();
        from.drain(|part| self.push_back(part));
        Poll::Ready(Ok(count))
    }
}
