/**
 * A certified login service on a free port. It takes the module of `oidc-provider` as its argument, and prints its issuer
 * once it listens. Users sign in by name alone. It ends with its standard input.
 */

import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { argv, env, stdin } from 'node:process';
import { pathToFileURL } from 'node:url';

const { default: Provider, interactionPolicy } = await import(pathToFileURL(argv[2]));

const secret = env.OIDC_CLIENT_SECRET;
const client = {
  client_id: 'tollgate',
  // A native client's loopback address is valid with any port.
  application_type: 'native',
  redirect_uris: ['http://127.0.0.1/bff/login/callback'],
  ...(secret ? { client_secret: secret } : { token_endpoint_auth_method: 'none' }),
};

// It would ask the users of a native client at each sign-in.
const policy = interactionPolicy.base();
policy.get('consent').checks.remove('native_client_prompt');

const page = (title, body) => `<!doctype html><html lang="en"><meta charset="utf-8"><title>${title}</title>
<link rel="icon" href="data:,"><h1>${title}</h1>${body}</html>`;
const SIGN_IN = page('Staff sign-in', '<form method="post"><label>User <input name="user" autofocus></label> <button>Continue</button></form>');

const configuration = {
  clients: [client],
  jwks: { keys: [{ ...generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' }), use: 'sig', alg: 'RS256' }] },
  cookies: { keys: [randomUUID()] },
  claims: { openid: ['sub'], profile: ['preferred_username'] },
  // Claims of a scope are in the ID token, as most services do it.
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  interactions: { policy, url: (_, { uid }) => `/sign-in/${uid}` },
  findAccount: (_, name) => ({ accountId: name, claims: () => ({ sub: name, preferred_username: `${name} the user` }) }),
  // The service asks no user for consent.
  async loadExistingGrant({ oidc: { client: { clientId }, session: { accountId }, provider } }) {
    const grant = new provider.Grant({ clientId, accountId });
    grant.addOIDCScope('openid profile');
    await grant.save();
    return grant;
  },
  features: {
    devInteractions: { enabled: false },
    rpInitiatedLogout: {
      logoutSource: (context, form) => {
        context.body = page('Sign out of everything?', `${form}<button form="op.logoutForm" name="logout" value="yes">Sign out</button>`);
      },
      postLogoutSuccessSource: (context) => {
        context.body = page('Signed out of everything', '');
      },
    },
  },
};

async function serve(provider, request, response) {
  if (!request.url.startsWith('/sign-in/')) {
    provider.callback()(request, response);
    return;
  }
  if (request.method === 'GET') {
    response.setHeader('content-type', 'text/html');
    response.end(SIGN_IN);
    return;
  }
  let form = '';
  for await (const part of request) form += part;
  const accountId = new URLSearchParams(form).get('user');
  await provider.interactionFinished(request, response, accountId ? { login: { accountId } } : { error: 'access_denied' });
}

const server = createServer().listen(0, '127.0.0.1', () => {
  // Another host than that of tollgate: browsers take the two for different sites.
  const issuer = `http://localhost:${server.address().port}`;
  const provider = new Provider(issuer, configuration);
  server.on('request', (request, response) => serve(provider, request, response));
  console.log(issuer);
});
stdin.on('end', () => process.exit()).resume();
