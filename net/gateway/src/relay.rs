//! A connection of the cell and one of Linux, end to end: bytes, ends and resets of each go to the other.

use crate::linux;
use isola_iobuf::Chain;
use isola_net::TcpStream;
use std::future::poll_fn;
use std::task::{Context, Poll};

/// One way: what is on it, and whether more can come.
#[derive(Default)]
struct Way {
    held: Chain,
    ended: bool,
    /// Whether the end was told to the receiver.
    told: bool,
}

/// Which side failed.
#[derive(Clone, Copy)]
enum Failed {
    Cell,
    Linux,
}

/// Carries bytes until both sides have said their last, or one fails: then the other gets a reset.
pub async fn relay(mut cell: TcpStream, linux: linux::TcpStream) {
    let (mut inwards, mut outwards) = (Way::default(), Way::default());
    let ended = poll_fn(|context| {
        move_in(context, &linux, &mut cell, &mut inwards)?;
        move_out(context, &linux, &mut cell, &mut outwards)?;
        if inwards.told && outwards.told { Poll::Ready(Ok::<(), Failed>(())) } else { Poll::Pending }
    });
    match ended.await {
        Ok(()) => {}
        Err(Failed::Linux) => cell.abort(),
        Err(Failed::Cell) => linux.abort(),
    }
}

/// From Linux to the cell, until one of them is not ready.
fn move_in(
    context: &mut Context<'_>,
    linux: &linux::TcpStream,
    cell: &mut TcpStream,
    way: &mut Way,
) -> Result<(), Failed> {
    while !way.told {
        if !way.held.is_empty() {
            match cell.poll_write(context, &mut way.held) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Err(Failed::Cell),
                Poll::Pending => return Ok(()),
            }
        } else if way.ended {
            cell.shutdown();
            way.told = true;
        } else {
            match linux.poll_read(context) {
                Poll::Ready(Ok(Some(data))) => way.held.push_back(data),
                Poll::Ready(Ok(None)) => way.ended = true,
                Poll::Ready(Err(_)) => return Err(Failed::Linux),
                Poll::Pending => return Ok(()),
            }
        }
    }
    Ok(())
}

/// From the cell to Linux, until one of them is not ready.
fn move_out(
    context: &mut Context<'_>,
    linux: &linux::TcpStream,
    cell: &mut TcpStream,
    way: &mut Way,
) -> Result<(), Failed> {
    while !way.told {
        if !way.held.is_empty() {
            match linux.poll_write(context, &mut way.held) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Err(Failed::Linux),
                Poll::Pending => return Ok(()),
            }
        } else if way.ended {
            linux.shutdown();
            way.told = true;
        } else {
            match cell.poll_read(context) {
                Poll::Ready(Ok(Some(data))) => way.held = data,
                Poll::Ready(Ok(None)) => way.ended = true,
                Poll::Ready(Err(_)) => return Err(Failed::Cell),
                Poll::Pending => return Ok(()),
            }
        }
    }
    Ok(())
}
