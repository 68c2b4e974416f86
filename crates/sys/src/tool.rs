//! Running the system's own tools (`nft`, `resolvectl`): no shell, a fixed search path, a time
//! limit.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Search path of tools, whatever the caller's environment: the daemon runs them as root.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The longest that any of them may take.
const TOOL_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("the program {program} is missing: install it (Debian: apt install {package})")]
    Missing {
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    #[error("{program} failed: {message}")]
    Refused { program: &'static str, message: String },
    #[error("{program} did not end within {} s", TOOL_TIMEOUT.as_secs())]
    TimedOut { program: &'static str },
    #[error("{program} could not be run: {source}")]
    Os { program: &'static str, source: io::Error },
}

/// A tool and the Debian package that has it.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    pub program: &'static str,
    pub package: &'static str,
}

/// The firewall's tool.
pub(crate) const NFT: Tool = Tool { program: "nft", package: "nftables" };

impl Tool {
    /// Runs it to its end with `input` on its standard input.
    pub async fn run(self, arguments: &[String], input: &str) -> Result<(), ToolError> {
        self.read(arguments, input).await.map(drop)
    }

    /// Runs the tool and returns what it has printed.
    pub async fn read(self, arguments: &[String], input: &str) -> Result<String, ToolError> {
        let Self { program, package } = self;
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => ToolError::Missing { program, package },
            _ => ToolError::Os { program, source },
        };
        let mut child = Command::new(program)
            .args(arguments)
            .env("PATH", SEARCH_PATH)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let mut stdin = child.stdin.take().expect("standard input was asked for as a pipe");
        let work = async {
            // A tool that ends without reading prints the reason on its standard error.
            let _ = stdin.write_all(input.as_bytes()).await;
            drop(stdin);
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(TOOL_TIMEOUT, work)
            .await
            .map_err(|_| ToolError::TimedOut { program })?
            .map_err(failed)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let message = if said.is_empty() { output.status.to_string() } else { said };
        Err(ToolError::Refused { program, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_tool_is_named_with_its_package() {
        let tool = Tool { program: "vpnd-no-such-tool", package: "some-package" };
        let message = tool.run(&[], "").await.unwrap_err().to_string();
        assert!(
            message.contains("vpnd-no-such-tool") && message.contains("apt install some-package"),
            "{message}"
        );
    }

    #[tokio::test]
    async fn what_a_tool_complains_about_is_passed_on() {
        let tool = Tool { program: "sh", package: "dash" };
        let script = "read line; echo \"bad $line\" >&2; exit 3";
        let error = tool.run(&["-c".into(), script.into()], "input\n").await.unwrap_err();
        assert!(matches!(&error, ToolError::Refused { message, .. } if message == "bad input"), "{error}");
        tool.run(&["-c".into(), "exit 0".into()], "never read").await.unwrap();
        assert_eq!(tool.read(&["-c".into(), "cat".into()], "as it is\n").await.unwrap(), "as it is\n");
    }
}
