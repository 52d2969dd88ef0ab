//! An archive in an S3-compatible bucket.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use reqwest::{Client, Method, Response, StatusCode, Url};
use rusty_s3::actions::{ListObjectsV2, S3Action as _};
use rusty_s3::{Bucket as Place, BucketError, Credentials, UrlStyle};
use tokio::time::sleep;

use super::ArchiveError;
use crate::limits::{
    BUCKET_ANSWER_WITHIN, BUCKET_ATTEMPTS, BUCKET_CONNECT_WITHIN, BUCKET_LIST_BYTES_MAX,
    BUCKET_RETRY, BUCKET_SIGNED_FOR,
};

/// Where a bucket is, and as whom it is used.
pub struct BucketAt {
    /// The service's URL.
    pub endpoint: Url,
    /// Its region, which is part of each signature.
    pub region: String,
    /// Its name.
    pub name: String,
    /// What every key begins with; empty, or without a slash at either end.
    pub prefix: String,
    /// Whether its name is the first part of the host, as AWS has it, and not of the path.
    pub is_host: bool,
    /// Access key, secret, and the session's token where there is one.
    pub credentials: Credentials,
}

/// Why there can be no such bucket.
#[derive(Debug, thiserror::Error)]
pub enum InvalidBucket {
    /// The endpoint or the name.
    #[error("no URL can be made of endpoint and name: {0}")]
    Url(#[from] BucketError),
    /// The HTTP client.
    #[error("no HTTP client can be made")]
    Client(#[from] reqwest::Error),
}

#[derive(Clone)]
pub(super) struct Bucket {
    shared: Arc<Shared>,
}

struct Shared {
    place: Place,
    prefix: String,
    credentials: Credentials,
    client: Client,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({self})")
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, prefix) = (self.shared.place.name(), &self.shared.prefix);
        write!(f, "s3://{name}/{prefix}")
    }
}

impl Bucket {
    pub(super) fn new(at: BucketAt) -> Result<Self, InvalidBucket> {
        let mut client = Client::builder()
            .connect_timeout(BUCKET_CONNECT_WITHIN)
            .timeout(BUCKET_ANSWER_WITHIN)
            // A signed URL must not follow a redirect to somebody else.
            .redirect(reqwest::redirect::Policy::none());
        if at.endpoint.scheme() == "http" {
            // Looking for the machine's authorities fails where it has none, and none is needed.
            client = client.tls_certs_only([]);
        }
        let style = if at.is_host {
            UrlStyle::VirtualHost
        } else {
            UrlStyle::Path
        };
        let shared = Shared {
            place: Place::new(at.endpoint, style, at.name, at.region)?,
            prefix: at.prefix,
            credentials: at.credentials,
            client: client.build()?,
        };
        let shared = Arc::new(shared);
        Ok(Self { shared })
    }

    fn key(&self, file: &str) -> String {
        let prefix = &self.shared.prefix;
        if prefix.is_empty() {
            file.to_owned()
        } else {
            format!("{prefix}/{file}")
        }
    }

    pub(super) async fn read(
        &self,
        file: String,
        most: usize,
    ) -> Result<Option<Vec<u8>>, ArchiveError> {
        let Shared {
            place, credentials, ..
        } = &*self.shared;
        let key = self.key(&file);
        let url = || {
            let get = place.get_object(Some(credentials), &key);
            get.sign(BUCKET_SIGNED_FOR)
        };
        self.send(&file, Method::GET, url, &[], most).await
    }

    /// Writes an object, whole or not at all.
    pub(super) async fn replace(&self, file: String, bytes: Vec<u8>) -> Result<(), ArchiveError> {
        let Shared {
            place, credentials, ..
        } = &*self.shared;
        let key = self.key(&file);
        let url = || {
            let put = place.put_object(Some(credentials), &key);
            put.sign(BUCKET_SIGNED_FOR)
        };
        let put = self
            .send(&file, Method::PUT, url, &bytes, BUCKET_LIST_BYTES_MAX)
            .await?;
        // There is no such bucket.
        put.map(drop).ok_or(ArchiveError::Missing { file })
    }

    /// Removes every object below a path.
    pub(super) async fn remove(&self, folder: String) -> Result<(), ArchiveError> {
        let Shared {
            place, credentials, ..
        } = &*self.shared;
        let below = format!("{}/", self.key(&folder));
        // No more than the widths of a partial tile, which one answer has.
        let url = || {
            let mut list = place.list_objects_v2(Some(credentials));
            list.with_prefix(&below);
            list.sign(BUCKET_SIGNED_FOR)
        };
        let most = BUCKET_LIST_BYTES_MAX;
        let listed = self.send(&folder, Method::GET, url, &[], most).await?;
        let listed = listed.unwrap_or_default();
        let listed = String::from_utf8_lossy(&listed);
        let listed = ListObjectsV2::parse_response(&listed);
        let listed = listed.map_err(|_| ArchiveError::Listing {
            file: folder.clone(),
        })?;
        for object in listed.contents {
            // What the listing says must not lead anywhere else.
            if !object.key.starts_with(&below) {
                continue;
            }
            let url = || {
                let delete = place.delete_object(Some(credentials), &object.key);
                delete.sign(BUCKET_SIGNED_FOR)
            };
            self.send(&folder, Method::DELETE, url, &[], most).await?;
        }
        Ok(())
    }

    /// Sends a request, again when that may help; the body of the answer, nothing for what is not there.
    async fn send(
        &self,
        file: &str,
        method: Method,
        url: impl Fn() -> Url,
        body: &[u8],
        most: usize,
    ) -> Result<Option<Vec<u8>>, ArchiveError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let request = self.shared.client.request(method.clone(), url());
            let sent = async {
                let answer = request.body(body.to_vec()).send().await?;
                let status = answer.status();
                Ok((status, body_of(answer, most).await?))
            };
            let result: Result<_, reqwest::Error> = sent.await;
            let may_pass = match &result {
                Ok((status, _)) => {
                    status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
                }
                Err(_) => true,
            };
            if may_pass && attempt < BUCKET_ATTEMPTS {
                sleep(BUCKET_RETRY * attempt).await;
                continue;
            }
            let file = file.to_owned();
            return match result {
                Ok((StatusCode::NOT_FOUND, _)) => Ok(None),
                Ok((status, body)) if status.is_success() => {
                    if body.len() > most {
                        return Err(ArchiveError::TooLong { file, most });
                    }
                    Ok(Some(body))
                }
                Ok((status, _)) => Err(ArchiveError::Refused {
                    file,
                    status: status.as_u16(),
                }),
                // The URL is as good as the credentials, for a while.
                Err(source) => Err(ArchiveError::Bucket {
                    file,
                    source: source.without_url(),
                }),
            };
        }
    }
}

/// A body, and one part more than `most` of one that is longer.
async fn body_of(mut answer: Response, most: usize) -> Result<Vec<u8>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await? {
        body.extend_from_slice(&part);
        if body.len() > most {
            break;
        }
    }
    Ok(body)
}
