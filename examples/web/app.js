// index.html says where tollgate is.
const { tollgate: home } = document.querySelector('[data-tollgate]').dataset;
const { createClient } = await import(`${home}/bff/client.js`);
await import(`${home}/bff/widgets.js`);

// With members or a login of your own: createClient({ token: () => session.accessToken })
const tollgate = createClient();
const [ask, answer] = ['ask', 'answer'].map((id) => document.getElementById(id));

ask.addEventListener('click', async () => {
  answer.textContent = 'Waiting…';
  try {
    const reply = await tollgate.chat({
      model: 'eta-5-mini',
      messages: [{ role: 'user', content: 'Say something kind.' }],
    });
    answer.textContent = `${reply.message.content} ($${reply.cost})`;
  } catch (error) {
    answer.textContent = `${error.message} (charged: ${error.charged ?? 'unknown'})`;
  }
});
ask.disabled = false;
