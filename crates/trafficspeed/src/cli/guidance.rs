//! Hints for a user who types the bare name, a command that does not exist, or the options of
//! another program.

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Cli;

/// The output of a bare `trafficspeed`.
pub const EXAMPLES: &str = "\
trafficspeed measures what a VPN carries as its clients grow. Five ways to begin, as root where a laboratory is built:

  trafficspeed --clients 2,8                        vpnd and plain routing, with 2 and 8 clients
  trafficspeed compare --vpn vpnd,wireguard-go --clients 8
                                                    two VPNs in rounds, with median, spread and ratios
  trafficspeed stream                               one TCP stream through vpnd, as iperf3 would measure it
  trafficspeed udp -b 50M                           UDP at a rate: what is lost, and how evenly the rest comes
  trafficspeed doctor                               which systems this machine can measure

Between real hosts: trafficspeed serve --help, trafficspeed run --help. Everything: trafficspeed --help.
";

/// The output of `trafficspeed --help`: one screen, with the commands in groups. Their options are
/// shown by each.
pub const OVERVIEW: &str = "\
Measures what a VPN carries as its clients grow.

Usage: trafficspeed --clients N[,N...] [OPTIONS]      the lab; needs root
       trafficspeed COMMAND [OPTIONS]                 trafficspeed COMMAND --help shows the options

To begin:
  lab                  all pairs of clients at once, in namespaces of this machine
  compare              several VPNs in rounds, with median, spread and ratios; can be resumed
  run, serve, token    between hosts: `serve` on each host, `run` on one; a token for both
  report               shows the results in a directory again, also as pictures
  doctor               which VPNs this machine can measure, and what installs the others
One kind of load:
  stream, udp, rr      TCP; UDP with its losses; requests and their delay; options as in iperf3
  home                 a download, an upload, a call and web pages at once over a home's line
Experiments of papers:
  suite, model, block  ciphers under many loads; where the time goes; block writes over long delays
Checks and the rest:
  verify, link-check   the generator against iperf3 and nuttcp; the emulated links alone
  cleanup              removes what a killed run left behind
  completions, man     for a shell; manual pages

Thousands of sessions and hours of churn, vpnd alone: vpnd-endurance --help
";

/// The answer to the first options of iperf3.
const AS_IPERF: &str = "\
trafficspeed has no server that measures without a token. On one host: trafficspeed token FILE, and copy FILE to the other; there: \
trafficspeed serve --token-file FILE; here: trafficspeed stream --pair localhost=HOST --token-file FILE, with `trafficspeed serve` on \
this host, too. In a laboratory on this machine: trafficspeed stream";

/// The error with what leads on: the list of known subcommands, if an unknown one is what is wrong,
/// but never a hidden one; and the way between hosts for the options of iperf3.
pub fn naming_known(mut error: clap::Error) -> clap::Error {
    let is_hidden = |name: &str| Cli::command().find_subcommand(name).is_some_and(clap::Command::is_hide_set);
    match error.get(ContextKind::SuggestedSubcommand).cloned() {
        Some(ContextValue::String(name)) if is_hidden(&name) => {
            error.remove(ContextKind::SuggestedSubcommand);
        }
        Some(ContextValue::Strings(mut names)) => {
            names.retain(|name| !is_hidden(name));
            error.remove(ContextKind::SuggestedSubcommand);
            if !names.is_empty() {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
            }
        }
        _ => {}
    }
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg)
        && ["-c", "-s", "--client", "--server"].contains(&unknown.as_str())
    {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![AS_IPERF.into()]));
    }
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand)
    {
        // The words before the unknown one lead to the command that does not have it.
        let words = std::env::args().skip(1).take_while(|word| word != unknown);
        let top = Cli::command();
        let parent = words.fold(&top, |command, word| command.find_subcommand(word).unwrap_or(command));
        let known = parent.get_subcommands().filter(|command| !command.is_hide_set());
        let known: Vec<&str> = known.map(clap::Command::get_name).collect();
        let tip = match unknown.as_str() {
            "sessions" | "capacity" | "soak" => {
                format!("vpnd alone is measured by: vpnd-endurance {unknown}")
            }
            _ => format!("known ones: {}", known.join(", ")),
        };
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}
