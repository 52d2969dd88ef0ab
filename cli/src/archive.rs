//! Where the log is kept besides its database.

use clap::Args;
use ledger_audit::{Archive, BucketAt};
use reqwest::Url;
use rusty_s3::Credentials;

/// An archive that is read from.
#[derive(Debug, Args)]
pub(crate) struct ArchiveOption {
    /// The archive with the events that have left the database (`retention`), as `serve --log-archive`
    /// has it
    #[arg(long, value_name = "FOLDER|s3://BUCKET/PREFIX", value_parser = parse)]
    pub(crate) archive: Option<Archive>,
}

/// Reads where an archive is: a folder, or `s3://BUCKET/PREFIX`, with the environment's variables as the
/// AWS SDKs read them.
pub(crate) fn parse(text: &str) -> Result<Archive, String> {
    let Some(place) = text.strip_prefix("s3://") else {
        if text.is_empty() || text.contains("://") {
            return Err("is neither a folder nor s3://BUCKET/PREFIX".to_owned());
        }
        return Ok(Archive::folder(text));
    };
    let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
    let prefix = prefix.trim_end_matches('/');
    if name.is_empty() || prefix.split('/').any(|part| matches!(part, "." | "..")) {
        return Err("is no bucket; write s3://BUCKET/PREFIX".to_owned());
    }
    let credentials = Credentials::from_env()
        .ok_or("needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment")?;
    let region = first_of(["AWS_REGION", "AWS_DEFAULT_REGION"]);
    let own = first_of(["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
    let region = match (&own, region) {
        (_, Some(region)) => region,
        // Servers that have none take this one.
        (Some(_), None) => "us-east-1".to_owned(),
        (None, None) => return Err("needs AWS_REGION in the environment".to_owned()),
    };
    let is_host = own.is_none();
    let endpoint = own.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
    let endpoint = Url::parse(&endpoint)
        .map_err(|_| "needs a URL in AWS_ENDPOINT_URL, such as https://s3.example.com")?;
    let at = BucketAt {
        endpoint,
        region,
        name: name.to_owned(),
        prefix: prefix.to_owned(),
        is_host,
        credentials,
    };
    Archive::bucket(at).map_err(|error| error.to_string())
}

/// The first of these variables that is set.
fn first_of(names: [&str; 2]) -> Option<String> {
    let values = names.iter().filter_map(|name| std::env::var(name).ok());
    values.into_iter().find(|value| !value.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u1_an_archive_is_a_folder_or_a_bucket() {
        assert_eq!(
            parse("/var/log archive").unwrap().to_string(),
            "/var/log archive"
        );
        for (wrong, told) in [
            ("", "neither"),
            ("https://example.com/a", "neither"),
            ("s3://", "no bucket"),
            ("s3:///prefix", "no bucket"),
            ("s3://bucket/a/../b", "no bucket"),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(told), "{wrong}: {error}");
        }
    }
}
