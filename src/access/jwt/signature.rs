//! Verifies the signatures of tokens (RFC 7518, 8037).

use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, VerificationAlgorithm};

use Algorithm::{ES256, ES384, Ed25519, PS256, PS384, PS512, RS256, RS384, RS512};

/// The algorithms that a public key verifies. None uses a shared secret: otherwise, anyone who knows
/// the public key could sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    Ed25519,
}

/// A key that verifies signatures.
#[derive(Clone, Debug)]
pub(super) enum VerifyingKey {
    /// The modulus and the exponent, without leading zeros.
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    /// An uncompressed point (SEC 1, 2.3.3), or the 32 bytes of Ed25519.
    Point(Vec<u8>),
}

enum Scheme {
    Rsa(&'static RsaParameters),
    Point(&'static dyn VerificationAlgorithm),
}

impl Algorithm {
    /// Returns the algorithm of this name (RFC 7518, 8037, 9864).
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => RS256,
            "RS384" => RS384,
            "RS512" => RS512,
            "PS256" => PS256,
            "PS384" => PS384,
            "PS512" => PS512,
            "ES256" => ES256,
            "ES384" => ES384,
            "EdDSA" | "Ed25519" => Ed25519,
            _ => return None,
        })
    }

    fn scheme(self) -> Scheme {
        match self {
            RS256 => Scheme::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            RS384 => Scheme::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            RS512 => Scheme::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            PS256 => Scheme::Rsa(&signature::RSA_PSS_2048_8192_SHA256),
            PS384 => Scheme::Rsa(&signature::RSA_PSS_2048_8192_SHA384),
            PS512 => Scheme::Rsa(&signature::RSA_PSS_2048_8192_SHA512),
            ES256 => Scheme::Point(&signature::ECDSA_P256_SHA256_FIXED),
            ES384 => Scheme::Point(&signature::ECDSA_P384_SHA384_FIXED),
            Ed25519 => Scheme::Point(&signature::ED25519),
        }
    }
}

impl VerifyingKey {
    /// Returns whether the signature is by this key and algorithm.
    pub(super) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match (self, algorithm.scheme()) {
            (Self::Rsa(key), Scheme::Rsa(parameters)) => {
                key.verify(parameters, message, signature).is_ok()
            }
            (Self::Point(key), Scheme::Point(scheme)) => {
                scheme.verify(key[..].into(), message.into(), signature.into()).is_ok()
            }
            (Self::Rsa(_), Scheme::Point(_)) | (Self::Point(_), Scheme::Rsa(_)) => false,
        }
    }
}
