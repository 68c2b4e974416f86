// An OpenID provider (oidc-provider, certified) for the tests, which misbehaves as a file says.
//
// ISSUER, REDIRECT, CERTIFICATE, KEY, PACKAGES (its node_modules), MODE (that file), GROUPS (another, of each user) and LOGOUT
// (where logout tokens go) come in the environment. Whoever logs in is who they say.

import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';

const { ISSUER, REDIRECT, CERTIFICATE, KEY, PACKAGES, MODE, GROUPS, LOGOUT } = process.env;
const { Provider } = await import(`${PACKAGES}/oidc-provider/lib/index.js`);
const jose = await import(`${PACKAGES}/jose/dist/webapi/index.js`);

const mode = () => readFileSync(MODE, 'utf8').trim();
const groups = (user) => JSON.parse(readFileSync(GROUPS, 'utf8'))[user];

const pair = async (algorithm, kid) => {
  const { privateKey } = await jose.generateKeyPair(algorithm, { extractable: true });
  return { ...(await jose.exportJWK(privateKey)), kid, alg: algorithm, use: 'sig' };
};
const first = await pair('RS256', 'first');
const second = await pair('ES256', 'second');
const stranger = await pair('RS256', 'first');

const provider = (key) => {
  const made = new Provider(ISSUER, {
    clients: [{
      client_id: 'vpn',
      client_secret: 'the secret of the gateway, as long as it has to be',
      redirect_uris: [REDIRECT],
      grant_types: ['authorization_code', 'refresh_token'],
      id_token_signed_response_alg: key.alg,
      ...(LOGOUT && { backchannel_logout_uri: LOGOUT, backchannel_logout_session_required: true }),
    }],
    // The library refuses addresses that are no public ones, as those of the laboratory are.
    fetch: async (url, options) => {
      const form = options.body && new URLSearchParams(options.body);
      const token = form?.get('logout_token');
      if (token) form.set('logout_token', await altered(token, key));
      return fetch(url, { ...options, body: form, dispatcher: undefined });
    },
    jwks: { keys: [key] },
    cookies: { keys: ['a key of the tests'] },
    claims: { openid: ['sub'], profile: ['preferred_username', 'groups'] },
    scopes: ['openid', 'offline_access', 'profile'],
    features: { devInteractions: { enabled: true }, backchannelLogout: { enabled: true } },
    // As Keycloak does, without being asked for offline_access.
    issueRefreshToken: async (_, client) => client.grantTypeAllowed('refresh_token'),
    rotateRefreshToken: true,
    findAccount: (_, id) => groups(id) && {
      accountId: id,
      claims: () => ({ sub: id, preferred_username: id, groups: groups(id) }),
    },
  });
  made.on('backchannel.error', (_, error) => console.log('a logout was not delivered:', error, error.cause));
  made.use(async (context, next) => {
    if (mode() === 'slow' && context.method === 'POST' && context.path === '/token') {
      await new Promise((resolve) => { setTimeout(resolve, 60_000); });
    }
    await next();
    if (context.path === '/token' && context.body?.id_token) {
      context.body.id_token = await altered(context.body.id_token, key);
    }
    if (context.path === '/me' && mode() === 'userinfo') context.body.sub = 'eve';
  });
  return made.callback();
};

// What a provider, or somebody in its place, may say otherwise.
const CHANGES = {
  nonce: (claims) => ({ ...claims, nonce: 'another' }),
  audience: (claims) => ({ ...claims, aud: 'another' }),
  party: (claims) => ({ ...claims, aud: ['vpn', 'another'], azp: 'another' }),
  issuer: (claims) => ({ ...claims, iss: 'https://another.example' }),
  expired: (claims) => ({ ...claims, exp: claims.iat - 3600, iat: claims.iat - 7200 }),
  overage: (claims) => ({ ...claims, _claim_names: { groups: 'a' }, preferred_username: claims.sub }),
  factor: (claims) => ({ ...claims, amr: ['pwd', 'otp'] }),
  old: (claims) => ({ ...claims, auth_time: claims.iat - 28800 }),
  unsaid: ({ auth_time, ...claims }) => claims,
  session: ({ sub, ...claims }) => (claims.events ? claims : { ...claims, sub }),
  stranger: (claims) => claims,
  none: (claims) => claims,
};

const altered = async (token, key) => {
  const change = CHANGES[mode()];
  if (!change) return token;
  const claims = change(jose.decodeJwt(token));
  if (mode() === 'none') {
    const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
    return `${part({ alg: 'none' })}.${part(claims)}.`;
  }
  const by = mode() === 'stranger' ? stranger : key;
  const header = { ...jose.decodeProtectedHeader(token), alg: by.alg };
  return new jose.SignJWT(claims).setProtectedHeader(header).sign(await jose.importJWK(by, by.alg));
};

const [before, after] = [provider(first), provider(second)];
const { hostname, port } = new URL(ISSUER);
createServer({ cert: readFileSync(CERTIFICATE), key: readFileSync(KEY) }, (request, response) => {
  (mode() === 'rotated' ? after : before)(request, response);
}).listen(Number(port), hostname, () => console.log('listening'));
