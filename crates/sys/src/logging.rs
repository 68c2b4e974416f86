//! Log lines on standard error: for people at a terminal, for the journal, or as JSON for machines.
//!
//! Invariants: one event is one line, whatever text from outside it carries; under systemd a line
//! bears its priority (`<4>`, see sd-daemon(3)) and neither time nor colours, because the journal
//! has its own. This module must not know who logs what. Nothing secret may be handed to it at any
//! level.

use std::fmt::{self, Debug};
use std::io::IsTerminal as _;
use std::os::fd::AsFd;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry};

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people and the journal.
    Text,
    /// One JSON object a line.
    Json,
    /// For a user who has started the program at a terminal: sentences, without time, level and
    /// module.
    #[value(skip)]
    Sentences,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(
        "the log filter {filter:?} is wrong: {source}; write error, warn, info, debug, trace, or a filter such as \
         \"info,vpnd::admin=debug\""
    )]
    Filter { filter: String, source: tracing_subscriber::filter::ParseError },
    /// A word that would be taken for the name of a module, so that nothing is logged.
    #[error(
        "the log filter {filter:?} names neither a level nor a module of vpnd: write error, warn, info, debug, trace, or a \
         filter such as \"info,vpnd::admin=debug\"; with {word:?} alone nothing would be logged"
    )]
    UnknownWord { filter: String, word: String },
    #[error("logging was set up twice: {0}")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

/// Sends the log of the whole process to standard error. `filter` has the syntax of `RUST_LOG`.
///
/// # Errors
/// If the filter is wrong, or logging was set up before.
pub fn init(filter: &str, format: LogFormat) -> Result<(), LogError> {
    let style = Style::of_stderr(format, |name| std::env::var(name).ok());
    subscriber(filter, style, std::io::stderr)?.try_init()?;
    Ok(())
}

/// Checks that a filter means what its author wrote. The parser takes a misspelt level for the name
/// of a module, and then nothing is logged at all.
///
/// # Errors
/// If it can't be parsed, or has such a word.
pub fn check_filter(filter: &str) -> Result<(), LogError> {
    if let Err(source) = EnvFilter::builder().parse(filter) {
        return Err(LogError::Filter { filter: filter.to_owned(), source });
    }
    let mut alone = filter.split(',').map(str::trim).filter(|word| !word.contains(['=', '[']));
    let known = |word: &str| {
        word.is_empty()
            || word.parse::<LevelFilter>().is_ok()
            || word == "vpnd"
            || word.starts_with("vpnd::")
            || word.starts_with("vpnd_")
    };
    match alone.find(|word| !known(word)) {
        Some(word) => Err(LogError::UnknownWord { filter: filter.to_owned(), word: word.to_owned() }),
        None => Ok(()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// With the time; with colours if the terminal shows them.
    Person {
        colours: bool,
    },
    /// With a priority that journald takes off again.
    Journal,
    Json,
    /// Sentences without time, level and module.
    Sentences,
}

impl Style {
    fn of_stderr(format: LogFormat, variable: impl Fn(&str) -> Option<String>) -> Self {
        match format {
            LogFormat::Json => Self::Json,
            LogFormat::Sentences => Self::Sentences,
            LogFormat::Text if goes_to_journal(&variable) => Self::Journal,
            LogFormat::Text => {
                let unwanted = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
                Self::Person { colours: std::io::stderr().is_terminal() && !unwanted }
            }
        }
    }
}

/// Whether standard error is the journal's.
fn goes_to_journal(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable("JOURNAL_STREAM").is_some_and(|id| is_stream(std::io::stderr(), &id))
}

/// This library writes errors of the system as its code has them; what comes of them is logged
/// anyway. Its name, and the filter for it where the configured one does not name it.
const SYSTEM_ERRORS: (&str, &str) = ("quinn_udp", "quinn_udp=error");

/// Target of the few lines for a user who has started a program at a terminal.
pub const NEWS: &str = "vpnd::news";

/// The filter and the format for a program that a person has started: warnings and [`NEWS`], as
/// sentences; more with each `-v`, as in other formats and in the journal.
#[must_use]
pub fn for_person(format: LogFormat, verbosity: u8) -> (&'static str, LogFormat) {
    let is_read_at_once = format == LogFormat::Text && !goes_to_journal(|name| std::env::var(name).ok());
    match verbosity {
        0 if is_read_at_once => ("warn,vpnd::news=info", LogFormat::Sentences),
        0 | 1 => ("info", format),
        _ => ("info,vpnd=debug", format),
    }
}

/// Whether `file` is the one that `JOURNAL_STREAM` names as `device:inode`. A service may have
/// redirected its standard error after systemd set the variable, so the variable alone proves
/// nothing.
fn is_stream(file: impl AsFd, journal_stream: &str) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| journal_stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

fn subscriber<W>(filter: &str, style: Style, writer: W) -> Result<impl Subscriber + Send + Sync, LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let named = filter.contains(SYSTEM_ERRORS.0);
    let filter = EnvFilter::builder()
        .parse(filter)
        .map_err(|source| LogError::Filter { filter: filter.to_owned(), source })?;
    let filter = if named {
        filter
    } else {
        filter.add_directive(SYSTEM_ERRORS.1.parse().expect("it is a directive"))
    };
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match style {
        Style::Person { colours } => layer.with_ansi(colours).fmt_fields(OneLine).boxed(),
        Style::Journal => layer.with_ansi(false).fmt_fields(OneLine).event_format(journal()).boxed(),
        Style::Sentences => layer.with_ansi(false).event_format(Sentences).boxed(),
        Style::Json => layer.with_ansi(false).json().flatten_event(true).with_span_list(false).boxed(),
    };
    Ok(tracing_subscriber::registry().with(layer).with(filter))
}

fn journal() -> Journal {
    let lines = tracing_subscriber::fmt::format().without_time().with_level(false);
    Journal { news: lines.clone().with_target(false), lines }
}

/// Puts the priority before a line.
struct Journal {
    lines: Format<Full, ()>,
    /// Without a module: it is for people.
    news: Format<Full, ()>,
}

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        let format = if event.metadata().target() == NEWS { &self.news } else { &self.lines };
        format.format_event(context, writer, event)
    }
}

/// An event as a sentence, as `main` prints an error: the message, then what is known besides.
struct Sentences;

impl<S, N> FormatEvent<S, N> for Sentences
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut sentence = Sentence::default();
        event.record(&mut sentence);
        let Sentence { message, error, rest } = sentence;
        let warning = if *event.metadata().level() <= Level::WARN { "warning: " } else { "" };
        write!(writer, "vpnd: {warning}{message}")?;
        if !error.is_empty() {
            write!(writer, ": {error}")?;
        }
        if !rest.is_empty() {
            write!(writer, " ({})", rest.join(", "))?;
        }
        writeln!(writer)
    }
}

/// The parts of an event, without control characters.
#[derive(Default)]
struct Sentence {
    message: String,
    error: String,
    /// Other fields, each with its name.
    rest: Vec<String>,
}

impl Visit for Sentence {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value: String = format!("{value:?}").chars().filter(|c| !crate::text::is_deceptive(*c)).collect();
        match field.name() {
            "message" => self.message = value,
            "error" => self.error = value,
            name if name.starts_with("log.") => {}
            name => self.rest.push(format!("{} {value}", name.replace('_', " "))),
        }
    }
}

/// The priority of syslog(3) for a level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Writes fields as `message key=value …` without a control character in any value, nor one that
/// hides or turns text around: in a text that came from outside they would otherwise let its author
/// write log lines.
struct OneLine;

impl<'w> FormatFields<'w> for OneLine {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut line = Line { writer, first: true, result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

struct Line<'w> {
    writer: Writer<'w>,
    first: bool,
    result: fmt::Result,
}

impl Line<'_> {
    fn field(&mut self, name: &str, value: &str) -> fmt::Result {
        if !std::mem::take(&mut self.first) {
            self.writer.write_char(' ')?;
        }
        if name != "message" {
            write!(self.writer, "{name}=")?;
        }
        value.chars().try_for_each(|c| match crate::text::is_deceptive(c) {
            true => write!(self.writer, "{}", c.escape_default()),
            false => self.writer.write_char(c),
        })
    }
}

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Events of the `log` crate repeat their target and place as fields of this prefix.
        if self.result.is_ok() && !field.name().starts_with("log.") {
            self.result = self.field(field.name(), &format!("{value:?}"));
        }
    }
}

/// Captures the log in tests.
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
pub mod testing {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::{Style, subscriber};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The output that this thread logs while `events` runs.
    pub(super) fn logged(filter: &str, style: Style, events: impl FnOnce()) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = subscriber(filter, style, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, events);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// Returns what the journal gets of these events.
    pub fn logged_as_text(events: impl FnOnce()) -> String {
        logged("info", Style::Journal, events)
    }

    /// Returns what these events log, parsed from JSON.
    pub fn logged_as_json(events: impl FnOnce()) -> Vec<serde_json::Value> {
        let text = logged("info", Style::Json, events);
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::testing::logged;
    use super::*;

    #[test]
    fn the_journal_gets_priorities_and_no_time() {
        let text = logged("debug", Style::Journal, || {
            tracing::error!(target: "vpnd", "e");
            tracing::warn!(target: "vpnd", user = "ann", "w");
            tracing::info!(target: "vpnd", port = 4433, "i");
            tracing::debug!(target: "vpnd", "d");
            tracing::info!(target: NEWS, "connected");
            tracing::warn!(target: "quinn_udp", "sendmsg error: Os {{ code: 1 }}");
        });
        assert_eq!(
            text,
            "<3>vpnd: e\n<4>vpnd: w user=\"ann\"\n<6>vpnd: i port=4433\n<7>vpnd: d\n<6>connected\n"
        );
    }

    #[test]
    fn text_from_outside_cannot_start_a_line() {
        for style in [Style::Journal, Style::Person { colours: false }, Style::Json, Style::Sentences] {
            let text = logged("info", style, || {
                tracing::info!(user = %"ann\n<0>forged\u{1b}[2J\u{202e}", "login\nof");
            });
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(!text.contains('\u{1b}'), "{text}");
            // JSON is for programs, and says what was there.
            assert!(style == Style::Json || !text.contains('\u{202e}'), "{text}");
        }
    }

    #[test]
    fn people_get_time_level_and_colours_if_wanted() {
        let plain = logged("info", Style::Person { colours: false }, || tracing::warn!("careful"));
        assert!(plain.contains(" WARN ") && plain.contains("careful") && plain.starts_with("20"), "{plain}");
        assert!(!plain.contains('\u{1b}'));
        let coloured = logged("info", Style::Person { colours: true }, || tracing::warn!("careful"));
        assert!(coloured.contains('\u{1b}'));
    }

    #[test]
    fn messages_for_the_user_of_a_command_are_sentences() {
        let (filter, format) = for_person(LogFormat::Text, 0);
        assert_eq!(format, LogFormat::Sentences);
        let text = logged(filter, Style::Sentences, || {
            tracing::info!(target: NEWS, ipv4 = %"10.8.0.2", routes = 3, "the tunnel is set up");
            tracing::info!(target: "vpnd::suites", "hidden");
            tracing::warn!(target: "quinn_udp", "sendmsg error: Os {{ code: 1 }}");
            tracing::warn!(target: "vpnd::client", error = %"no route", retry_s = 2, "no connection");
            tracing::warn!(target: "vpnd::client", user = "ann\n\u{202e}x", "odd");
        });
        assert_eq!(
            text,
            "vpnd: the tunnel is set up (ipv4 10.8.0.2, routes 3)\n\
             vpnd: warning: no connection: no route (retry s 2)\n\
             vpnd: warning: odd (user annx)\n"
        );
        assert_eq!(for_person(LogFormat::Text, 1), ("info", LogFormat::Text));
        assert_eq!(for_person(LogFormat::Json, 0), ("info", LogFormat::Json));
    }

    #[test]
    fn json_has_the_fields_at_the_top() {
        let text = logged("info", Style::Json, || tracing::info!(target: "vpnd", port = 4433, "listening"));
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["message"], "listening");
        assert_eq!(line["port"], 4433);
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["target"], "vpnd");
    }

    #[test]
    fn the_filter_decides_by_target() {
        let text = logged("warn,vpnd::admin=debug", Style::Journal, || {
            tracing::info!(target: "vpnd::shard", "hidden");
            tracing::debug!(target: "vpnd::admin", "shown");
        });
        assert_eq!(text, "<7>vpnd::admin: shown\n");
    }

    #[test]
    fn a_bad_filter_is_named() {
        let error = subscriber("vpnd=loud", Style::Json, io::sink).map(drop).unwrap_err();
        assert!(error.to_string().contains("\"vpnd=loud\" is wrong"), "{error}");
    }

    #[test]
    fn a_misspelt_level_is_no_module() {
        for good in
            ["info", "WARN", "off", "vpnd", "vpnd::admin", "info,vpnd::admin=debug", "warn,quinn=trace", "2"]
        {
            assert!(check_filter(good).is_ok(), "{good}");
        }
        for bad in ["wran", "info,wran", "wran,vpnd::admin=debug", "vpndd", "quinn"] {
            let error = check_filter(bad).unwrap_err();
            assert!(matches!(error, LogError::UnknownWord { .. }), "{bad}: {error}");
            assert_eq!(
                logged(bad, Style::Json, || tracing::warn!("lost")).is_empty(),
                !bad.contains("info"),
                "{bad}"
            );
        }
        assert!(matches!(check_filter("vpnd=loud"), Err(LogError::Filter { .. })));
    }

    #[test]
    fn the_systemd_journal_is_recognised_by_its_inode() {
        let file = tempfile::tempfile().unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        assert!(is_stream(&file, &format!("{}:{}", stat.st_dev, stat.st_ino)));
        assert!(!is_stream(&file, &format!("{}:{}", stat.st_dev, stat.st_ino + 1)));
        let variable = |name: &str| (name == "JOURNAL_STREAM").then(|| "0:0".to_owned());
        let style = Style::of_stderr(LogFormat::Text, variable);
        assert!(matches!(style, Style::Person { .. }), "redirected away from the journal: {style:?}");
        assert_eq!(Style::of_stderr(LogFormat::Json, variable), Style::Json);
    }
}
