//! How a run of the program ends, and how that is told to a shell.

use std::fmt;
use std::process::ExitCode;

/// What a run's end means to the script that started it. The numbers are a contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// Whoever read our output has gone; there is nobody left to tell, and nothing is wrong.
    NobodyReads,
    /// It was tried and failed, or a comparison found a difference.
    Failed,
    /// What was asked for cannot be asked for.
    Usage,
    /// The service refused.
    Refused,
    /// There is no such thing in the caller's view.
    NotFound,
    /// The service, Postgres or NATS did not answer; the same call may work later.
    Unavailable,
}

impl Code {
    /// The number that the shell sees.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::NobodyReads => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::NotFound => 4,
            Self::Unavailable => 5,
        }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code.number())
    }
}

/// What a service says that cannot listen where it was told to.
pub(crate) const LISTEN_ELSEWHERE: &str = "choose another address with --listen";

/// Why a run did not succeed. It is no `std::error::Error`, so that `?` turns every error into one.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What it means to a script.
    pub(crate) code: Code,
    /// What it means to people, with the whole chain of causes.
    pub(crate) error: anyhow::Error,
}

impl Failure {
    /// A failure with this meaning.
    pub(crate) fn new(code: Code, error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        Self { code, error }
    }

    /// A request that cannot be made: the message says what would work.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Code::Usage, anyhow::anyhow!("{message}"))
    }

    /// The same, with what to do about it in front.
    pub(crate) fn advised(self, advice: impl fmt::Display) -> Self {
        let error = self.error.context(advice.to_string());
        Self { error, ..self }
    }

    /// Something that was tried and failed.
    pub(crate) fn failed(message: impl fmt::Display) -> Self {
        Self::new(Code::Failed, anyhow::anyhow!("{message}"))
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(Code::Failed, error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(&self.error))
    }
}

/// The whole chain of causes in one line. Libraries differ in whether an error's text holds that of
/// its cause already; what was just said is not said again.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if told.is_empty() {
            told = cause;
        } else if !told.ends_with(&cause) {
            told.push_str(": ");
            told.push_str(&cause);
        }
    }
    told
}

/// Gives an error its meaning and says what was being done.
pub(crate) trait Meaning<T> {
    /// The other side did not answer.
    fn or_unavailable(self, doing: impl fmt::Display) -> Result<T, Failure>;
    /// What was asked for cannot be asked for.
    fn or_usage(self, doing: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> Meaning<T> for Result<T, E> {
    fn or_unavailable(self, doing: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| {
            Failure::new(Code::Unavailable, error.into().context(doing.to_string()))
        })
    }

    fn or_usage(self, doing: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(Code::Usage, error.into().context(doing.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h2_exit_codes_are_fixed_for_scripts() {
        let codes = [
            Code::NobodyReads,
            Code::Failed,
            Code::Usage,
            Code::Refused,
            Code::NotFound,
            Code::Unavailable,
        ];
        assert_eq!(codes.map(Code::number), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn h2_a_failure_does_not_repeat_what_its_cause_says() {
        let cause = anyhow::anyhow!("no such host");
        let error = cause
            .context("could not look up db: no such host")
            .context("could not connect");
        assert_eq!(
            Failure::from(error).to_string(),
            "could not connect: could not look up db: no such host"
        );
    }

    #[test]
    fn h2_a_failure_tells_the_whole_chain_in_one_line() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let failure = Err::<(), _>(refused)
            .or_unavailable("could not reach the API")
            .unwrap_err();
        assert_eq!(
            failure.to_string(),
            "could not reach the API: connection refused"
        );
        assert_eq!(failure.code, Code::Unavailable);
    }
}
