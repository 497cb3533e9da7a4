//! The end that answers.

use crate::end::{End, EndError};
use crate::round::Round;
use isola_net::TcpStream;

/// Answers a client's messages by messages of the same size, until it has had enough.
///
/// # Errors
/// [`EndError`], where it says what it should not, or leaves in the middle.
pub async fn serve(stream: TcpStream) -> Result<(), EndError> {
    let mut end = End::new(stream);
    while let Some(said) = end.hear().await? {
        let round = Round::from_bytes(said).ok_or(EndError::Protocol)?;
        if round.size == 0 {
            break;
        }
        for _ in 0..round.count {
            end.receive(round.size).await?;
            end.send(round.size).await?;
        }
    }
    end.shutdown();
    Ok(())
}
