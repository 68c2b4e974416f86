//! Which of a host's addresses answers first (after RFC 8305): each gets a head start before the
//! next one is tried, and one that the machine has no way to costs nothing. Knows nothing of what
//! is asked there.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

/// The head start of an address: a handshake with a gateway on another continent takes no longer.
pub const HEAD_START: Duration = Duration::from_millis(300);

/// Addresses of one host that are tried.
const MAX_ADDRESSES: usize = 4;

/// The addresses of a host.
///
/// # Errors
/// If its name can't be looked up or has none.
pub async fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found: Vec<_> = tokio::net::lookup_host((host, port)).await?.take(MAX_ADDRESSES).collect();
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "its name has no address"));
    }
    Ok(found)
}

/// Connects to the first of these addresses that answers. The caller limits the time.
///
/// # Errors
/// If none of them lets it.
pub async fn connect(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let connected = first(addresses, TcpStream::connect).await;
    connected.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => io::Error::new(
            error.kind(),
            "the connection is refused: nothing listens at that port (does the server run, and is the port right?), or a firewall refuses it",
        ),
        _ => error,
    })
}

/// Returns the result of the first address for which `attempt` succeeds.
///
/// # Errors
/// The last failure, if all fail.
pub async fn first<T, A>(addresses: Vec<SocketAddr>, attempt: impl Fn(SocketAddr) -> A) -> io::Result<T>
where
    A: Future<Output = io::Result<T>>,
{
    let nothing = None::<std::future::Ready<io::Result<Vec<SocketAddr>>>>;
    let outcome = race(addresses, nothing, Duration::ZERO, attempt).await;
    outcome.map_err(|error| error.unwrap_or_else(|| io::Error::other("there is no address")))
}

/// Tries the `known` addresses, from `look_up_after` on also those that `look_up` finds, and
/// returns what the first success gives.
///
/// # Errors
/// If no address gives a success: the last failure; `None` if there was nothing to try. One bad
/// gateway of several must not keep the client from the others.
pub async fn race<T, E, L, A>(
    known: Vec<SocketAddr>,
    look_up: Option<L>,
    look_up_after: Duration,
    attempt: impl Fn(SocketAddr) -> A,
) -> Result<T, Option<E>>
where
    L: Future<Output = Result<Vec<SocketAddr>, E>>,
    A: Future<Output = Result<T, E>>,
{
    let mut look_up = look_up.map(Box::pin);
    let mut seen = known.clone();
    let mut queue = VecDeque::from(interleaved(known));
    let mut attempts = FuturesUnordered::new();
    let (mut next_start, look_up_at) = (Instant::now(), Instant::now() + look_up_after);
    let mut looks_up = false;
    let mut last = None;
    loop {
        let nothing_else = queue.is_empty() && attempts.is_empty();
        if nothing_else && look_up.is_none() {
            return Err(last);
        }
        looks_up |= nothing_else;
        tokio::select! {
            Some(outcome) = attempts.next() => match outcome {
                Ok(connected) => return Ok(connected),
                Err(error) => {
                    last = Some(error);
                    next_start = Instant::now();
                }
            },
            () = sleep_until(next_start), if !queue.is_empty() => {
                attempts.extend(queue.pop_front().map(&attempt));
                next_start = Instant::now() + HEAD_START;
            }
            () = sleep_until(look_up_at), if !looks_up && look_up.is_some() => looks_up = true,
            found = answer(&mut look_up), if looks_up && look_up.is_some() => {
                look_up = None;
                match found {
                    Ok(mut found) => {
                        found.retain(|address| !seen.contains(address));
                        seen.extend(&found);
                        queue.extend(interleaved(found));
                    }
                    Err(error) => last = Some(error),
                }
            }
        }
    }
}

async fn answer<F: Future>(future: &mut Option<Pin<Box<F>>>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// The addresses with both protocol versions in turn, as far as there are both; the first stays the
/// first.
fn interleaved(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_ipv6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let pairs = std::iter::from_fn(|| {
        let pair = [first.next(), second.next()];
        pair.iter().any(Option::is_some).then_some(pair)
    });
    pairs.flatten().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    type Outcome = Result<SocketAddr, &'static str>;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// The simulated behaviour of an address: a delay, and the result after it.
    fn network(address: SocketAddr) -> (Duration, Outcome) {
        match address.port() {
            1 => (SECOND / 10, Ok(address)),
            2 => (Duration::ZERO, Err("no way there")),
            3 => (5 * SECOND, Err("silent")),
            _ => (SECOND / 10, Err("somebody else")),
        }
    }

    #[tokio::test]
    async fn a_port_at_which_nothing_listens_is_named_as_that() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = connect(vec![closed]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains("does the server run"), "{error}");
    }

    /// The outcome, how long it took, and what was tried when.
    async fn run(
        known: &[&str],
        found: Option<&[&str]>,
    ) -> (Result<SocketAddr, Option<&'static str>>, Duration, Vec<u16>) {
        let (begun, tried) = (Instant::now(), Mutex::new(Vec::new()));
        let look_up = found.map(|found| async move {
            tokio::time::sleep(SECOND / 2).await;
            if found.is_empty() { Err("no such name") } else { Ok(addresses(found)) }
        });
        let attempt = |address: SocketAddr| {
            tried.lock().unwrap().push(address.port());
            async move {
                let (after, outcome) = network(address);
                tokio::time::sleep(after).await;
                outcome
            }
        };
        let outcome = race(addresses(known), look_up, SECOND, attempt).await;
        (outcome, begun.elapsed(), tried.into_inner().unwrap())
    }

    #[tokio::test]
    async fn a_family_that_the_kernel_refuses_costs_nothing() {
        let refused = ["[::1]:2"; 20];
        let known: Vec<_> = refused.into_iter().chain(["127.0.0.1:3", "127.0.0.2:1"]).collect();
        let (outcome, after, _) = run(&known, None).await;
        assert!(outcome.is_ok() && after < 4 * SECOND, "{outcome:?} after {after:?}");
    }

    #[tokio::test]
    async fn a_silent_family_costs_a_head_start() {
        let (outcome, after, _) = run(&["[::1]:3", "[::2]:3", "[::3]:3", "127.0.0.1:1"], None).await;
        assert!(outcome.is_ok() && after < 4 * SECOND, "{outcome:?} after {after:?}");
    }

    #[tokio::test]
    async fn names_are_looked_up_when_nothing_is_known_or_what_is_known_does_not_answer() {
        let (outcome, after, _) = run(&[], Some(&["127.0.0.1:1"])).await;
        assert!(outcome.is_ok() && after < 2 * SECOND, "{outcome:?} after {after:?}");
        let (outcome, after, tried) = run(&["127.0.0.1:3"], Some(&["127.0.0.1:3", "127.0.0.2:1"])).await;
        assert!(outcome.is_ok() && after < 9 * SECOND / 2, "{outcome:?} after {after:?}");
        assert_eq!(tried, [3, 1], "nothing is tried twice");
        let (outcome, after, _) = run(&["127.0.0.1:2"], Some(&["127.0.0.2:1"])).await;
        assert!(outcome.is_ok() && after < 2 * SECOND, "{outcome:?} after {after:?}");
    }

    #[tokio::test]
    async fn what_answers_is_not_looked_up() {
        let looked_up = Mutex::new(false);
        let look_up = async {
            *looked_up.lock().unwrap() = true;
            Ok(Vec::new())
        };
        let attempt = |address| async move { network(address).1 };
        race(addresses(&["127.0.0.1:1"]), Some(look_up), SECOND, attempt).await.unwrap();
        assert!(!*looked_up.lock().unwrap());
    }

    #[tokio::test]
    async fn the_last_failure_is_returned() {
        assert_eq!(run(&["127.0.0.1:2"], Some(&[])).await.0, Err(Some("no such name")));
        assert_eq!(run(&[], None).await.0, Err(None));
    }

    #[tokio::test]
    async fn one_bad_address_does_not_keep_the_client_from_the_others() {
        let (outcome, after, _) = run(&["127.0.0.1:4", "127.0.0.2:1"], None).await;
        assert!(outcome.is_ok() && after < 2 * SECOND, "{outcome:?} after {after:?}");
        let (outcome, ..) = run(&["127.0.0.1:4"], Some(&["127.0.0.2:1"])).await;
        assert!(outcome.is_ok(), "an address that was looked up: {outcome:?}");
    }

    #[test]
    fn families_take_turns() {
        let mixed = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "127.0.0.1:1"]);
        assert_eq!(interleaved(mixed), addresses(&["[::1]:1", "127.0.0.1:1", "[::2]:1", "[::3]:1"]));
        assert!(interleaved(Vec::new()).is_empty());
    }
}
