//! Requests whose type says what they are answered with, and the process that answers them.
//!
//! On the socket a channel's requests are one enum, which [`requests!`](crate::requests) declares
//! with the reply of each. INVARIANT: that declaration alone pairs a request with its reply. A
//! process that answers with something else, or a caller that expects something else, does not
//! compile; bytes that are not the reply of the request with their number end the channel.

use std::sync::Arc;

use minicbor::{Decode, Encode};
use tokio::sync::{Mutex, Semaphore};
use vpnd_proto::control::Text;
use zeroize::Zeroizing;

use crate::channel::{Channel, ChannelError};
use crate::messages::SecretBytes;

/// A sentence for the log.
pub type Reason = Text<1024>;

/// A request to another process.
pub trait Request: Into<Self::Message> + Send + 'static {
    /// The requests of its channel.
    type Message: Send + 'static;
    type Reply: Encode<()> + for<'b> Decode<'b, ()> + Send + 'static;
}

/// A process that answers requests `R`.
pub trait Answer<R: Request> {
    /// # Errors
    /// With the reason, for the log of the process that has sent the request.
    fn answer(self: &Arc<Self>, request: R) -> impl Future<Output = Result<R::Reply, Reason>> + Send;
}

/// The requests of a channel, all of which the process `P` answers.
pub trait AnsweredBy<P>: for<'b> Decode<'b, ()> + Send + 'static {
    /// The reply, as [`encoded`].
    fn answered_by(self, process: &Arc<P>) -> impl Future<Output = SecretBytes> + Send;
}

/// A request, or an encoded reply, with the number that pairs them.
#[derive(Debug, Encode, Decode)]
pub struct Numbered<T> {
    #[n(0)]
    pub number: u64,
    #[n(1)]
    pub content: T,
}

/// A reply as it is on the socket.
pub fn encoded<T: Encode<()>>(reply: &Result<T, Reason>) -> SecretBytes {
    SecretBytes(Zeroizing::new(minicbor::to_vec(reply).expect("a vector takes all that is written")))
}

/// Answers requests until the other end is gone, as many at a time as there are permits.
///
/// # Errors
/// If the other process breaks the rules of the channel.
pub async fn serve<M, P>(
    channel: Channel,
    process: Arc<P>,
    permits: Arc<Semaphore>,
) -> Result<(), ChannelError>
where
    M: AnsweredBy<P>,
    P: Send + Sync + 'static,
{
    let turn = Arc::new(Mutex::new(channel.clone()));
    while let Some(received) = channel.receive::<Numbered<M>>().await? {
        let Numbered { number, content } = received.alone()?;
        let permit = Arc::clone(&permits).acquire_owned().await.expect("it is never closed");
        let (process, turn) = (Arc::clone(&process), Arc::clone(&turn));
        tokio::spawn(async move {
            let content = content.answered_by(&process).await;
            let channel = turn.lock().await;
            let sent = channel.send(&Numbered { number, content }, &[]).await;
            if let Err(ChannelError::Broken(why)) = sent {
                let content = encoded::<()>(&Err(Reason::cut(why)));
                // If this fails too, the other process is gone, and the loop above ends.
                let _ = channel.send(&Numbered { number, content }, &[]).await;
            }
            drop(permit);
        });
    }
    Ok(())
}

/// Declares the requests of a channel, each with its number on the socket, its content and the type
/// of its reply.
///
/// ```
/// # use std::sync::Arc;
/// # use vpnd_ipc::request::{AnsweredBy, Answer, Reason};
/// #[derive(Debug, minicbor::Encode, minicbor::Decode)]
/// struct Count(#[n(0)] String);
///
/// vpnd_ipc::requests! {
///     /// Requests to a clerk.
///     ClerkRequest {
///         Count = 0, Count => u64;
///     }
/// }
///
/// struct Clerk;
///
/// impl Answer<Count> for Clerk {
///     async fn answer(self: &Arc<Self>, Count(text): Count) -> Result<u64, Reason> {
///         Ok(text.len() as u64)
///     }
/// }
/// # fn are_answered<M: AnsweredBy<Clerk>>() {}
/// # are_answered::<ClerkRequest>();
/// ```
///
/// A clerk that does not answer one of them, or answers with something else, is none:
///
/// ```compile_fail
/// # use std::sync::Arc;
/// # use vpnd_ipc::request::{Answer, Reason};
/// # #[derive(Debug, minicbor::Encode, minicbor::Decode)]
/// # struct Count(#[n(0)] String);
/// # vpnd_ipc::requests! {
/// #     /// Requests to a clerk.
/// #     ClerkRequest {
/// #         Count = 0, Count => u64;
/// #     }
/// # }
/// # struct Clerk;
/// impl Answer<Count> for Clerk {
///     async fn answer(self: &Arc<Self>, Count(text): Count) -> Result<String, Reason> {
///         Ok(text)
///     }
/// }
/// ```
#[macro_export]
macro_rules! requests {
    ($(#[doc = $doc:literal])+ $visibility:vis $message:ident { $($variant:ident = $number:tt, $request:ty => $reply:ty;)+ }) => {
        $(#[doc = $doc])+
        #[derive(Debug, minicbor::Encode, minicbor::Decode)]
        $visibility enum $message { $(#[n($number)] $variant(#[n(0)] $request),)+ }

        impl<P> $crate::request::AnsweredBy<P> for $message
        where
            P: Send + Sync + 'static $(+ $crate::request::Answer<$request>)+,
        {
            async fn answered_by(self, process: &std::sync::Arc<P>) -> $crate::messages::SecretBytes {
                match self {
                    $(Self::$variant(request) => {
                        $crate::request::encoded(&$crate::request::Answer::answer(process, request).await)
                    })+
                }
            }
        }

        $(
            impl From<$request> for $message {
                fn from(request: $request) -> Self {
                    Self::$variant(request)
                }
            }

            impl $crate::request::Request for $request {
                type Message = $message;
                type Reply = $reply;
            }
        )+
    };
}
