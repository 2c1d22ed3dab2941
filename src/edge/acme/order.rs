//! One ACME order, from the account to the certificate.

use std::io;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeHandle, ChallengeType, Error,
    HttpClient, Identifier, NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use tokio_rustls::rustls::crypto::ring::sign::any_supported_type;
use tokio_rustls::rustls::pki_types::{CertificateDer, Der, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use tracing::info;
use x509_cert::Certificate as X509;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::AuthorityKeyIdentifier;
use zeroize::Zeroizing;

use super::files::{AcmeFiles, PendingOrder};
use super::schedule::{MAX_ORDERS, order_wait};
use crate::clock;
use crate::config::AcmeConfig;
use crate::edge::tls::{Certificate, Tls};

/// The time limit for the authority's checks, and again for the certificate.
const POLL: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));
/// The problem type for orders of an unknown account.
const UNKNOWN_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";
/// The problem type for a revoked account, and for replacing another account's certificate.
const UNAUTHORIZED: &str = "urn:ietf:params:acme:error:unauthorized";

/// Returns the saved account, or registers one.
pub(super) async fn account(
    config: &AcmeConfig,
    files: &AcmeFiles,
    connect: impl Fn() -> io::Result<Box<dyn HttpClient>>,
) -> io::Result<Account> {
    if let Some(credentials) = files.account(&config.directory)? {
        let builder = Account::builder_with_http(connect()?);
        return builder.from_credentials(credentials).await.map_err(failed);
    }
    let contact: Vec<_> = config.contact.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let builder = Account::builder_with_http(connect()?);
    let created = builder.create(&new, config.directory.to_string(), None).await;
    let (account, credentials) = created.map_err(failed)?;
    files.keep_account(&config.directory, credentials)?;
    info!(directory = %config.directory, "account registered");
    Ok(account)
}

/// Returns the identifier of a certificate for renewal information (RFC 9773, section 4.1).
pub(super) fn certificate_id(
    certificate: &CertificateDer<'_>,
) -> Option<CertificateIdentifier<'static>> {
    let signed = X509::from_der(certificate).ok()?.tbs_certificate;
    let (_, authority) = signed.get::<AuthorityKeyIdentifier>().ok()??;
    let key = authority.key_identifier?;
    // Both as they are encoded, with the zero before a serial number that looks negative.
    let serial = signed.serial_number.as_bytes();
    let id = CertificateIdentifier::new(Der::from_slice(key.as_bytes()), Der::from_slice(serial));
    Some(id.into_owned())
}

/// Obtains the certificate, and writes it. `replaced` is the current one, if this authority issued it.
pub(super) async fn complete(
    account: &Account,
    config: &AcmeConfig,
    files: &AcmeFiles,
    (tls, replaced): (&Tls, Option<&Certificate>),
) -> io::Result<()> {
    let (mut order, key) = match resume(account, config, files).await? {
        Some(resumed) => resumed,
        None => place(account, config, files, replaced).await?,
    };
    let finished = finish(&mut order, &key, config, tls).await;
    match finished {
        Ok(chain) => files.keep_certificate(&key, &chain),
        Err(error) => {
            // What the authority has rejected stays rejected. All else can go on later.
            if order.state().status == OrderStatus::Invalid {
                files.forget_order()?;
            }
            Err(error)
        }
    }
}

type Placed = (Order, Zeroizing<String>);

/// Returns the pending order of an earlier attempt or process, if it is still usable.
async fn resume(
    account: &Account,
    config: &AcmeConfig,
    files: &AcmeFiles,
) -> io::Result<Option<Placed>> {
    let Some(PendingOrder { url, names, key }) = files.order()? else { return Ok(None) };
    if names == config.names {
        match account.order(url).await {
            Ok(mut order) => {
                if order.state().status != OrderStatus::Invalid {
                    info!("certificate order resumed");
                    return Ok(Some((order, key)));
                }
            }
            // It has expired.
            Err(Error::Api(_)) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    files.forget_order()?;
    Ok(None)
}

async fn place(
    account: &Account,
    config: &AcmeConfig,
    files: &AcmeFiles,
    replaced: Option<&Certificate>,
) -> io::Result<Placed> {
    let now = clock::wall();
    if !order_wait(&files.placed_orders(), now).is_zero() {
        let text = format!("{MAX_ORDERS} orders within a day are the limit");
        return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
    }
    let key = KeyPair::generate().map(|key| Zeroizing::new(key.serialize_pem()));
    let key = key.map_err(io::Error::other)?;
    let names: Vec<_> = config.names.iter().cloned().map(Identifier::Dns).collect();
    let mut new = NewOrder::new(&names);
    if let Some(profile) = &config.profile {
        new = new.profile(profile);
    }
    let replaced = replaced.and_then(|it| certificate_id(it.leaf()));
    let is_replacement = replaced.is_some();
    if let Some(id) = replaced {
        new = new.replaces(id);
    }
    files.record_order(now)?;
    let order = match account.new_order(&new).await {
        Ok(order) => order,
        Err(error) => {
            // The next attempt registers a new one.
            let kind =
                if let Error::Api(problem) = &error { problem.r#type.as_deref() } else { None };
            if kind == Some(UNKNOWN_ACCOUNT) || (kind == Some(UNAUTHORIZED) && !is_replacement) {
                files.forget_account()?;
            }
            return Err(failed(error));
        }
    };
    let url = order.url().to_owned();
    files.keep_order(&PendingOrder { url, names: config.names.clone(), key: key.clone() })?;
    info!(names = config.names.join(", "), "certificate order placed");
    Ok((order, key))
}

/// Answers the challenges, and returns the certificate chain in PEM.
async fn finish(
    order: &mut Order,
    key: &str,
    config: &AcmeConfig,
    tls: &Tls,
) -> io::Result<String> {
    if order.state().status == OrderStatus::Pending {
        offer_challenges(order, tls).await?;
        let polled = order.poll_ready(&POLL).await;
        if order.state().status == OrderStatus::Invalid {
            return Err(rejection(order).await);
        }
        polled.map_err(failed)?;
    }
    if order.state().status == OrderStatus::Ready {
        order.finalize_csr(&request(&config.names, key)?).await.map_err(failed)?;
        info!("certificate order finalized");
    }
    order.poll_certificate(&POLL).await.map_err(failed)
}

/// Answers the challenge for each name that is not authorized yet.
async fn offer_challenges(order: &mut Order, tls: &Tls) -> io::Result<()> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(failed)?;
        if authorization.status != AuthorizationStatus::Pending {
            continue;
        }
        let name = authorization.identifier().to_string();
        let challenge = authorization.challenge(ChallengeType::TlsAlpn01);
        let missing = || io::Error::other("the authority does not offer tls-alpn-01");
        let mut challenge = challenge.ok_or_else(missing)?;
        tls.offer_challenge(name.clone(), answer(&name, &challenge)?);
        info!(name, "certificate challenge offered");
        challenge.set_ready().await.map_err(failed)?;
    }
    Ok(())
}

/// Creates the certificate that answers a challenge (RFC 8737).
fn answer(name: &str, challenge: &ChallengeHandle<'_>) -> io::Result<CertifiedKey> {
    let make = || {
        let mut params = CertificateParams::new([name.to_owned()])?;
        let digest = challenge.key_authorization().digest();
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
        let key = KeyPair::generate()?;
        Ok::<_, rcgen::Error>((params.self_signed(&key)?, key))
    };
    let (certificate, key) = make().map_err(io::Error::other)?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(io::Error::other)?;
    let key = any_supported_type(&key).map_err(io::Error::other)?;
    Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
}

/// Returns the request for a certificate (CSR) in DER.
fn request(names: &[String], key: &str) -> io::Result<Vec<u8>> {
    let make = || {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&KeyPair::from_pem(key)?)?;
        Ok::<_, rcgen::Error>(request.der().to_vec())
    };
    make().map_err(io::Error::other)
}

/// Returns the authority's error for a failed challenge.
async fn rejection(order: &mut Order) -> io::Error {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else { continue };
        let details = state.challenges.iter().filter_map(|it| it.error.as_ref()?.detail.clone());
        reasons.extend(details.map(|detail| format!("{name}: {detail}")));
    }
    if reasons.is_empty() {
        reasons.push("the authority rejected the order".to_owned());
    }
    io::Error::other(reasons.join("; "))
}

fn failed(error: Error) -> io::Error {
    io::Error::other(error)
}
