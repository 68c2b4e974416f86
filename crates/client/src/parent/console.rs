//! The person for whom a client runs: at this process's terminal, or at the other end of the client
//! service's channel.
//!
//! Invariants: the service's end of the channel is watched, and the client ends in order when it
//! closes; one question is open at a time; messages to the service are bounded.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use minicbor::bytes::ByteVec;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use vpnd_proto::control::AsText;
use zeroize::Zeroizing;

use super::stop::TERMINATE;
use crate::args::ConnectArgs;
use crate::frames::{self, MAX_FROM_USER, Reader, Writer};
use crate::messages::{Browse, BrowserWay};
use crate::person::browser;
use crate::person::credentials::CredentialsError;
use crate::person::{session, terminal};
use crate::user_messages::{Ask, Begin, FromClient, ToClient, TunnelDetails, TunnelState, Typed};
use vpnd_sys::logging::NEWS;
use vpnd_sys::text::{format_chain, harmless};

/// The name of an end by `vpnd down`, beside those of signals.
pub(super) const BY_USER: &str = "vpnd down";
/// Names the end because the user's command that waited for the tunnel is gone.
pub(super) const ABANDONED: &str = "the end of vpnd up";
/// Names the end of a machine's tunnel because a user's takes its place: no user asked for an open
/// network.
const FOR_ANOTHER: &str = "another tunnel in its place";
/// Names the end because the service is gone, which no user asked for.
const WITHOUT_SERVICE: &str = "the end of the client service";
/// Time for a person to answer.
const PERSON_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 120 });
/// Time for the last message to leave.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// Messages to the service that wait.
const QUEUE: usize = 64;

/// Where the person is.
#[derive(Clone)]
pub(super) struct Console(Option<Arc<Service>>);

/// The client service.
struct Service {
    /// `None` is the end.
    outbox: mpsc::Sender<Option<FromClient>>,
    writing: Mutex<Option<JoinHandle<()>>>,
    /// Callers of the questions that were sent and not answered, the oldest first; some wait no
    /// more.
    waiting: Mutex<VecDeque<oneshot::Sender<Option<Typed>>>>,
    ending: watch::Receiver<Option<&'static str>>,
    /// The interface that this client is to have.
    turn: watch::Receiver<Option<String>>,
    report: Notify,
    is_report_due: AtomicBool,
    /// The last state that was reported.
    said: Mutex<Option<(TunnelState, String)>>,
}

impl Console {
    /// The terminal; or the service, which then says how the user logs in.
    ///
    /// # Errors
    /// If there should be a service and is none.
    pub(super) async fn open(args: &mut ConnectArgs) -> anyhow::Result<Self> {
        if !args.for_service {
            args.has_screen = browser::has_screen();
            args.sessions = session::peers().collect();
            return Ok(Self(None));
        }
        let stream: OwnedFd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        let (mut reader, writer) = frames::split_std(UnixStream::from(stream), MAX_FROM_USER)
            .context("this command is for the client service: use `vpnd up`")?;
        // Programs that this one starts have nothing to do with it.
        rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
        let begin = reader.next::<Begin>().await?.context("the client service is gone")?;
        args.profile = path_of(begin.profile);
        args.state_dir = path_of(begin.state_dir);
        args.on_behalf_of = begin.uid;
        let login = begin.login;
        args.login = login.name.map(|name| name.to_string());
        args.browser |= login.browser;
        args.has_screen = login.has_screen;
        args.sessions = login.session.into_iter().map(|AsText(peer)| peer).collect();
        Ok(Self::of_service(reader, writer))
    }

    fn of_service(reader: Reader, writer: Writer) -> Self {
        let (outbox, messages) = mpsc::channel(QUEUE);
        let (end, ending) = watch::channel(None);
        let (interface, turn) = watch::channel(None);
        let service = Arc::new(Service {
            outbox,
            writing: Mutex::new(Some(tokio::spawn(write(writer, messages)))),
            waiting: Mutex::default(),
            ending,
            turn,
            report: Notify::new(),
            is_report_due: AtomicBool::new(false),
            said: Mutex::default(),
        });
        tokio::spawn(read(Arc::clone(&service), reader, end, interface));
        Self(Some(service))
    }

    /// Waits until the person, or the end of the service, ends the client. Never at a terminal:
    /// there are signals for that.
    pub(super) async fn ended(self) -> &'static str {
        if let Some(service) = self.0
            && let Ok(Some(reason)) = service.ending.clone().wait_for(Option::is_some).await.map(|end| *end)
        {
            return reason;
        }
        std::future::pending().await
    }

    /// Waits until this client may change the machine; the interface to have then, where the
    /// service chooses it. Never returns if the service has it end instead.
    pub(super) async fn turn(&self) -> Option<String> {
        let service = self.0.as_ref()?;
        service.send(FromClient::Ready);
        let mut turn = service.turn.clone();
        match turn.wait_for(Option::is_some).await.map(|interface| interface.clone()) {
            Ok(interface) => interface,
            Err(_) => std::future::pending().await,
        }
    }

    /// Asks the person.
    ///
    /// # Errors
    /// If there is no user to ask, or no answer.
    pub(super) async fn ask(&self, ask: Ask) -> Result<Zeroizing<String>, CredentialsError> {
        let Some(service) = &self.0 else { return terminal::ask(&ask) };
        let (sender, answer) = oneshot::channel();
        lock(&service.waiting).push_back(sender);
        // There is no answer after the end; the question that waited got an error.
        if service.ending.borrow().is_some() {
            return Err(CredentialsError::NoAnswer);
        }
        service.send(FromClient::Ask(ask));
        match timeout(PERSON_TIMEOUT, answer).await {
            Ok(Ok(Some(typed))) => Ok(Zeroizing::new(typed.expose().to_owned())),
            _ => Err(CredentialsError::NoAnswer),
        }
    }

    /// Asks in the background.
    pub(super) fn begin_to_ask(&self, ask: Ask) -> JoinHandle<Result<Zeroizing<String>, CredentialsError>> {
        if self.0.is_none() {
            return tokio::task::spawn_blocking(move || terminal::ask(&ask));
        }
        let console = self.clone();
        tokio::spawn(async move { console.ask(ask).await })
    }

    /// Shows a page on which to log in.
    ///
    /// # Errors
    /// If that is no address of a page, or no short code.
    pub(super) fn browse(&self, page: &Browse) -> Result<(), String> {
        let advice = browser::advice(page)?;
        if let BrowserWay::Port { .. } = page.way {
            match &self.0 {
                None => browser::show(&page.url)?,
                Some(service) => service.send(FromClient::Browse(page.url.to_string())),
            }
        }
        match (advice, &self.0) {
            (Some(advice), None) => tracing::info!(target: NEWS, "{advice}"),
            (Some(advice), Some(service)) => service.send(FromClient::Line(advice)),
            (None, _) => {}
        }
        Ok(())
    }

    /// Shows the state: that it is connecting, or connected over UDP or this port of TCP; or this
    /// refusal in place of that.
    pub(super) fn note(&self, state: TunnelState, tcp_port: Option<u16>, refusal: Option<&str>) {
        let Some(service) = &self.0 else { return };
        let mut last = lock(&service.said);
        let before = last.as_ref().map(|(state, _)| *state);
        let said = refusal.map_or_else(|| words(before, state, tcp_port), str::to_owned);
        let now = Some((state, said.clone()));
        let is_new = match (&*last, state) {
            // The words depend on what was before.
            (Some((before, _)), TunnelState::Connecting) => *before != TunnelState::Connecting,
            (before, _) => *before != now,
        };
        if is_new {
            *last = now;
            service.send(FromClient::State { state, said });
        }
    }

    /// Shows what a server behind the gateway says. At a terminal the log has done so.
    pub(super) fn tell(&self, text: &str) {
        if let Some(service) = &self.0 {
            service.send(FromClient::Line(format!("the gateway asks: {}", harmless(text))));
        }
    }

    /// Shows a line of the client's own. At a terminal the log has done so.
    pub(super) fn say(&self, line: &str) {
        if let Some(service) = &self.0 {
            service.send(FromClient::Line(line.to_owned()));
        }
    }

    /// Waits until the service requests a report; never at a terminal. Safe to cancel.
    pub(super) async fn report_requested(&self) {
        match &self.0 {
            Some(service) => service.report.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Sends the report, if one was requested.
    pub(super) fn report(&self, details: impl FnOnce() -> TunnelDetails) {
        if let Some(service) = &self.0
            && service.is_report_due.swap(false, Ordering::Relaxed)
        {
            service.send(FromClient::Details(Box::new(details())));
        }
    }

    /// Sends the reason of a failure, which is the last message.
    pub(super) async fn finish(
        self,
        outcome: &anyhow::Result<()>,
        is_final: impl Fn(&anyhow::Error) -> bool,
    ) {
        let Some(service) = self.0 else { return };
        if let Err(error) = outcome {
            service.send(FromClient::Failed { why: format_chain(error), is_final: is_final(error) });
        }
        let _ = service.outbox.try_send(None);
        let writing = lock(&service.writing).take();
        if let Some(writing) = writing {
            let _ = timeout(FINISH_TIMEOUT, writing).await;
        }
    }
}

impl Service {
    fn send(&self, message: FromClient) {
        if self.outbox.try_send(Some(message)).is_err() {
            tracing::warn!("the client service does not read what it is sent");
        }
    }
}

async fn write(mut writer: Writer, mut messages: mpsc::Receiver<Option<FromClient>>) {
    while let Some(Some(message)) = messages.recv().await {
        if writer.send(&message).await.is_err() {
            return;
        }
    }
}

async fn read(
    service: Arc<Service>,
    mut reader: Reader,
    end: watch::Sender<Option<&'static str>>,
    turn: watch::Sender<Option<String>>,
) {
    let reason = loop {
        match reader.next::<ToClient>().await {
            Ok(Some(ToClient::Answer(typed))) => {
                // The question may be out of time, but this is no answer to another.
                if let Some(waiting) = lock(&service.waiting).pop_front() {
                    let _ = waiting.send(typed);
                }
            }
            Ok(Some(ToClient::Report)) => {
                service.is_report_due.store(true, Ordering::Relaxed);
                service.report.notify_one();
            }
            Ok(Some(ToClient::Turn(interface))) => drop(turn.send_replace(Some(interface))),
            Ok(Some(ToClient::End)) => break BY_USER,
            Ok(Some(ToClient::Leave)) => break TERMINATE,
            Ok(Some(ToClient::Abandon)) => break ABANDONED,
            Ok(Some(ToClient::GiveWay)) => break FOR_ANOTHER,
            Ok(None) | Err(_) => break WITHOUT_SERVICE,
        }
    };
    // The caller that waits for an answer gets an error.
    lock(&service.waiting).clear();
    end.send_replace(Some(reason));
}

/// The line for a state.
fn words(before: Option<TunnelState>, state: TunnelState, tcp_port: Option<u16>) -> String {
    match (state, tcp_port) {
        (TunnelState::Connecting, _) if before.is_none() => "connecting over UDP".to_owned(),
        (TunnelState::Connecting, _) => "the gateway does not answer any more: trying again".to_owned(),
        (_, None) => "connected over UDP".to_owned(),
        (_, Some(port)) => format!("this network passes only TCP {port}: using that, slower"),
    }
}

fn path_of(bytes: ByteVec) -> PathBuf {
    OsString::from_vec(bytes.into()).into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(super) mod tests {
    use vpnd_proto::control::{AsText, Text};

    use super::*;
    use crate::frames::MAX_FROM_SERVICE;
    use crate::person::credentials::CredentialsError;

    /// A client's console and the service's end.
    pub(in crate::parent) fn console() -> (Console, Reader, Writer) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (reader, writer) = frames::split_std(ours, MAX_FROM_USER).unwrap();
        let (from_client, to_client) = frames::split_std(theirs, MAX_FROM_SERVICE).unwrap();
        (Console::of_service(reader, writer), from_client, to_client)
    }

    async fn next(reader: &mut Reader) -> FromClient {
        reader.next().await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn each_state_is_printed_once_in_words() {
        let (console, mut reader, _writer) = console();
        for (state, tcp_port, refusal) in [
            (TunnelState::Connecting, None, None),
            (TunnelState::Connecting, None, None),
            (TunnelState::Connected, Some(443), None),
            (TunnelState::Connected, Some(443), None),
            (TunnelState::Connected, None, None),
            (TunnelState::Connected, None, Some("refused")),
            (TunnelState::Connected, None, Some("refused")),
            (TunnelState::Connected, None, None),
            (TunnelState::Connecting, None, None),
            (TunnelState::Connecting, None, None),
            (TunnelState::Connected, None, None),
        ] {
            console.note(state, tcp_port, refusal);
        }
        console.finish(&Ok(()), |_| false).await;
        let mut lines = Vec::new();
        while let Some(FromClient::State { said, .. }) = reader.next().await.unwrap() {
            lines.push(said);
        }
        assert_eq!(
            lines,
            [
                "connecting over UDP",
                "this network passes only TCP 443: using that, slower",
                "connected over UDP",
                "refused",
                "connected over UDP",
                "the gateway does not answer any more: trying again",
                "connected over UDP",
            ]
        );
    }

    #[tokio::test]
    async fn a_question_is_answered_by_the_service_or_not_at_all() {
        let (console, mut reader, mut writer) = console();
        let asking = console.begin_to_ask(Ask::Code);
        assert!(matches!(next(&mut reader).await, FromClient::Ask(Ask::Code)));
        let typed = Typed::new("123456").unwrap();
        writer.send(&ToClient::Answer(Some(typed))).await.unwrap();
        assert_eq!(asking.await.unwrap().unwrap().as_str(), "123456");
        let asking = console.begin_to_ask(Ask::Code);
        next(&mut reader).await;
        writer.send(&ToClient::Answer(None)).await.unwrap();
        assert!(matches!(asking.await.unwrap(), Err(CredentialsError::NoAnswer)));
        let asking = console.begin_to_ask(Ask::Code);
        next(&mut reader).await;
        drop(writer);
        assert!(matches!(asking.await.unwrap(), Err(CredentialsError::NoAnswer)));
        assert_eq!(console.clone().ended().await, WITHOUT_SERVICE);
        let began = std::time::Instant::now();
        assert!(matches!(console.ask(Ask::Code).await, Err(CredentialsError::NoAnswer)));
        assert!(began.elapsed() < PERSON_TIMEOUT, "nobody is waited for after the end");
    }

    #[tokio::test]
    async fn an_orderly_end_and_a_killed_service_are_distinguished() {
        let (console, _reader, mut writer) = self::console();
        writer.send(&ToClient::Leave).await.unwrap();
        assert_eq!(console.ended().await, TERMINATE);
        let (console, _reader, mut writer) = self::console();
        writer.send(&ToClient::Abandon).await.unwrap();
        assert_eq!(console.ended().await, ABANDONED);
        let (console, _reader, mut writer) = self::console();
        writer.send(&ToClient::GiveWay).await.unwrap();
        assert_eq!(console.ended().await, FOR_ANOTHER);
        let (console, _reader, writer) = self::console();
        drop(writer);
        assert_eq!(console.ended().await, WITHOUT_SERVICE);
    }

    #[tokio::test]
    async fn a_client_changes_nothing_before_its_turn() {
        let (console, mut reader, mut writer) = console();
        let turn = tokio::spawn({
            let console = console.clone();
            async move { console.turn().await }
        });
        assert!(matches!(next(&mut reader).await, FromClient::Ready));
        tokio::task::yield_now().await;
        assert!(!turn.is_finished());
        writer.send(&ToClient::Turn("vpn3".to_owned())).await.unwrap();
        assert_eq!(turn.await.unwrap().as_deref(), Some("vpn3"));
        let (console, _reader, mut writer) = self::console();
        writer.send(&ToClient::GiveWay).await.unwrap();
        assert_eq!(console.clone().ended().await, FOR_ANOTHER);
        assert!(timeout(Duration::from_millis(50), console.turn()).await.is_err(), "it has none any more");
        assert_eq!(Console(None).turn().await, None, "at a terminal it has its turn");
    }

    #[tokio::test]
    async fn a_question_without_an_answer_times_out() {
        let (console, _reader, _writer) = console();
        assert!(matches!(console.ask(Ask::Code).await, Err(CredentialsError::NoAnswer)));
    }

    #[tokio::test]
    async fn a_report_is_sent_once_for_each_request() {
        let (console, mut reader, mut writer) = console();
        console.report(|| panic!("nobody has requested one"));
        writer.send(&ToClient::Report).await.unwrap();
        console.report_requested().await;
        console.report(TunnelDetails::default);
        assert!(matches!(next(&mut reader).await, FromClient::Details(_)));
        console.report(|| panic!("it was sent"));
        writer.send(&ToClient::End).await.unwrap();
        assert_eq!(console.clone().ended().await, BY_USER);
        console.finish(&Err(anyhow::anyhow!("no route\x1b[2J")), |_| true).await;
        let last = next(&mut reader).await;
        assert!(
            matches!(&last, FromClient::Failed { why, is_final: true } if why == "no route?[2J"),
            "{last:?}"
        );
    }

    #[tokio::test]
    async fn only_pages_are_shown() {
        let (console, mut reader, _writer) = console();
        let browse = |url: &str, way| console.browse(&Browse { url: Text::cut(url), way });
        let port = |lacks_code| BrowserWay::Port { port: 40_000, lacks_code };
        assert!(browse("file:///etc/shadow", port(false)).is_err());
        browse("https://vpn.example/connect/x", port(true)).unwrap();
        assert!(matches!(next(&mut reader).await, FromClient::Browse(url) if url.starts_with("https")));
        let advice = next(&mut reader).await;
        assert!(matches!(&advice, FromClient::Line(line) if line.contains("ssh -L 40000:")), "{advice:?}");
        // A code is shown, and no browser is opened here.
        let (from, time_s) = (AsText([192, 0, 2, 1].into()), 600);
        let code = BrowserWay::Code { code: Text::cut("WDJB-MJHT"), from, time_s };
        browse("https://vpn.example/code", code).unwrap();
        let shown = next(&mut reader).await;
        assert!(matches!(&shown, FromClient::Line(line) if line.contains("WDJB-MJHT")), "{shown:?}");
    }
}
